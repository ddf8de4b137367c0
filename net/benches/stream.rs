//! How fast one stream carries columns over loopback: `cargo bench -p forebay-net --bench stream`.
//!
//! Batches of 1 MiB go from one task of this process to another. The ways are raw TCP with Arrow IPC (the limit), our streams with our
//! windows, with the initial windows of HTTP/2 and with TLS, and the stock service and client of arrow-flight with our windows. Ways take
//! turns; the best of the rounds counts, and the ratio to the limit.

#![allow(clippy::unwrap_used, reason = "a bench")]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, UInt64Array};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamEncoder;
use forebay_actors::{Fault, IoRuntime};
use forebay_net::{
    Caller, Dialer, Handler, Health, Identity, Incoming, Limits, Message, Outgoing, Security, SecurityFiles, Server,
};

// As the program: every batch is a large allocation, and the system's allocator gives such back to the kernel.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[path = "stream/stock.rs"]
mod stock;

const BATCH_ROWS: u64 = (1 << 20) / 8;
const ROUNDS: usize = 4;
const WITHIN: Duration = Duration::from_secs(10);

fn batches() -> usize {
    std::env::var("BATCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

pub(crate) fn batch() -> RecordBatch {
    RecordBatch::try_from_iter([("key", Arc::new(UInt64Array::from_iter_values(0..BATCH_ROWS)) as _)]).unwrap()
}

struct Source;

#[async_trait::async_trait]
impl Handler for Source {
    fn name(&self) -> &'static str {
        "source"
    }

    async fn exchange(
        &self,
        _: Caller,
        _: Vec<String>,
        mut incoming: Incoming,
        mut outgoing: Outgoing,
    ) -> Result<(), Fault> {
        let batch = batch();
        while incoming.next().await?.is_some() {
            for _ in 0..batches() {
                outgoing.send(Message::columns(batch.clone())).await?;
            }
        }
        Ok(())
    }
}

/// One stream that stays open, for all rounds.
struct Ours {
    _server: Server,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Ours {
    async fn new(io: &IoRuntime, limits: &Limits, security: &Security) -> Self {
        let identity = Identity { run: "bench".into(), role: "bench".into(), incarnation: 0, attempt: 1 };
        let listen = "127.0.0.1:0".parse().unwrap();
        let server =
            Server::start(io, listen, security, identity.clone(), limits, vec![Arc::new(Source)], Health::new());
        let server = server.await.unwrap();
        let peer = Dialer::new(io, security, &identity, limits).unwrap();
        let peer = peer.peer(&format!("localhost:{}", server.address().port())).unwrap();
        let (outgoing, incoming) = peer.exchange(&["source"], WITHIN).await.unwrap();
        Self { _server: server, outgoing, incoming }
    }

    async fn round(&mut self) -> u64 {
        self.outgoing.send(Message::metadata("go")).await.unwrap();
        let mut rows = 0;
        for _ in 0..batches() {
            rows += self.incoming.next().await.unwrap().unwrap().rows() as u64;
        }
        rows
    }
}

fn raw() -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sender = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let batch = batch();
        let mut encoder = StreamEncoder::try_new(&batch.schema()).unwrap();
        for _ in 0..batches() {
            for buffer in encoder.encode(&batch).unwrap() {
                socket.write_all(&buffer).unwrap();
            }
        }
        encoder.finish().unwrap().iter().for_each(|buffer| socket.write_all(buffer).unwrap());
    });
    let stream = StreamReader::try_new(TcpStream::connect(address).unwrap(), None).unwrap();
    let rows = stream.map(|batch| batch.unwrap().num_rows() as u64).sum();
    sender.join().unwrap();
    rows
}

fn tls() -> (tempfile::TempDir, Security) {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let file = |name: &str, text: String| {
        std::fs::write(folder.path().join(name), text).unwrap();
        Some(folder.path().join(name))
    };
    let files = SecurityFiles {
        token_file: None,
        tls_cert: file("cert", key.cert.pem()),
        tls_key: file("key", key.signing_key.serialize_pem()),
        tls_ca: file("cert", key.cert.pem()),
    };
    (folder, Security::load(&files).unwrap())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let ours = Limits::default();
    let http2 =
        Limits { stream_window: 65_535, connection_window: 65_536, streams: 1, frame: 16 << 10, ..Limits::default() };
    let (_files, tls) = tls();
    let open = Security::none();
    let io = &IoRuntime::new("net", IoRuntime::cores(16).div_ceil(2));
    let of = |limits: Limits, security: Security| async move { Ours::new(io, &limits, &security).await };
    let mut ways = [
        ("windows of HTTP/2", of(http2, open.clone()).await),
        ("our windows", of(ours.clone(), open.clone()).await),
        ("our windows, TLS", of(ours.clone(), tls).await),
    ];
    let stock = io.spawn(async move { stock::Stock::new(&ours).await }).await.unwrap();

    let mut best = vec![("raw TCP and Arrow IPC", f64::MAX), ("stock arrow-flight, our windows", f64::MAX)];
    best.extend(ways.iter().map(|(name, _)| (*name, f64::MAX)));
    let whole = batches() as u64 * BATCH_ROWS;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        assert_eq!(tokio::task::spawn_blocking(raw).await.unwrap(), whole);
        best[0].1 = best[0].1.min(begun.elapsed().as_secs_f64());

        let (begun, client) = (Instant::now(), stock.clone());
        assert_eq!(io.spawn(async move { client.round().await }).await.unwrap(), whole);
        best[1].1 = best[1].1.min(begun.elapsed().as_secs_f64());

        for (i, (_, way)) in ways.iter_mut().enumerate() {
            let begun = Instant::now();
            // Awaited on this thread, as an actor would.
            assert_eq!(way.round().await, whole);
            best[2 + i].1 = best[2 + i].1.min(begun.elapsed().as_secs_f64());
        }
    }
    let bytes = (batches() as u64 * BATCH_ROWS * 8) as f64;
    for (name, seconds) in &best {
        println!("{name:32} {:6.2} GB/s {:6.2} of the limit", bytes / seconds / 1e9, best[0].1 / seconds);
    }
}
