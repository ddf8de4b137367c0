//! Several server processes in one: each a host of shards and a server of its own on a port of the loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_actors::{Domain, Fault, Host, IoRuntime};
use forebay_net::{Dialer, Handler, Health, Identity, Limits, Peer, Retry, Security, Server};
use forebay_ps::remote::{TableService, Wire, connect};
use forebay_ps::{Init, Optimizer, PartConfig, Route, SlotHasher, TableClient, TableConfig, start_shards, start_table};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) fn config() -> TableConfig {
    let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
    let adagrad = Optimizer::Adagrad { lr: 0.1.into(), initial_accumulator: 0.0, eps: 1e-10, l2: 0.0 };
    let embedding = PartConfig::new("embedding", 10, adagrad, Init::Uniform { scale: 0.01 });
    TableConfig::new("ads", 3, vec![PartConfig::new("linear", 1, ftrl, Init::Zeros), embedding])
}

pub(crate) const DIM: usize = 11;

pub(crate) fn keys(step: u64) -> Vec<u64> {
    let slot = SlotHasher::new("C1", 9);
    (0..500).map(|i| slot.int((step * 131 + i * (1 + step % 3)) as i64)).collect()
}

pub(crate) fn grads(keys: &[u64], rows: &[f32]) -> Vec<f32> {
    let pull = |i: usize| (keys[i / DIM].rotate_left(i as u32 % 64) as i32 as f32) / 3e9;
    rows.iter().enumerate().map(|(i, w)| w * 0.1 + pull(i)).collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every row of the table, sorted by key: bits of weights and state.
pub(crate) async fn dump(table: &TableClient) -> Vec<(u64, Vec<u32>)> {
    // Shards hold cells that follow each other.
    let (mut all, mut cells) = (Vec::new(), 0);
    for shard in table.held() {
        let (mut from, first) = (0, cells);
        loop {
            let block = table.export(shard, from, 333).await.unwrap();
            if block.keys.is_empty() {
                break;
            }
            from += block.keys.len();
            let cell = |key: &u64| Route::new(4096).shard(*key);
            assert!(block.keys.iter().all(|key| cell(key) >= first));
            cells = block.keys.iter().map(|key| cell(key) + 1).fold(cells, usize::max);
            let state = |row: usize| &block.state[row * table.state_dim()..][..table.state_dim()];
            let rows = block.keys.iter().zip(block.weights.chunks(DIM)).enumerate();
            all.extend(rows.map(|(row, (k, w))| (*k, [bits(w), bits(state(row))].concat())));
        }
    }
    all.sort_unstable();
    all
}

pub(crate) fn identity(role: &str) -> Identity {
    Identity { run: "test".into(), role: role.into(), incarnation: 0, attempt: 1 }
}

/// Many short waits: tests cut connections on purpose.
pub(crate) fn retry() -> Retry {
    Retry { first: Duration::from_millis(1), most: Duration::from_millis(20), ..Retry::within(Duration::from_secs(60)) }
}

/// A runtime for one server or peer, which keeps it.
fn io() -> IoRuntime {
    IoRuntime::new("net", 1)
}

pub(crate) fn peer(address: SocketAddr) -> Peer {
    peer_as("trainer 0", address)
}

pub(crate) fn peer_as(role: &str, address: SocketAddr) -> Peer {
    let dialer = Dialer::new(&io(), &Security::none(), &identity(role), &Limits::default()).unwrap();
    dialer.peer(&address.to_string()).unwrap()
}

pub(crate) async fn serve(part: Arc<dyn Handler>) -> Server {
    let any = "127.0.0.1:0".parse().unwrap();
    let (security, limits) = (Security::none(), Limits::default());
    Server::start(&io(), any, &security, identity("ps 0"), &limits, vec![part], Health::new()).await.unwrap()
}

pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    hosts: Vec<Host>,
}

impl Cluster {
    pub(crate) async fn start(processes: usize, per_process: usize) -> Self {
        Self::of(config(), processes, per_process).await
    }

    pub(crate) async fn of(config: TableConfig, processes: usize, per_process: usize) -> Self {
        Self::serving(config, &vec![per_process; processes], |tables| tables).await
    }

    /// Processes with this many shards each; `setting` changes each server's tables.
    pub(crate) async fn serving(
        config: TableConfig,
        shards: &[usize],
        setting: impl Fn(TableService) -> TableService,
    ) -> Self {
        let mut cluster = Self { servers: Vec::new(), hosts: Vec::new() };
        for (rank, count) in shards.iter().enumerate() {
            let host = Host::start("ps").unwrap();
            let route = Route::of_process(rank, shards.len(), *count);
            let shards = start_shards(&host, config.clone(), route).unwrap();
            cluster.servers.push(serve(Arc::new(setting(TableService::new(vec![shards])))).await);
            cluster.hosts.push(host);
        }
        cluster
    }

    pub(crate) fn peers(&self) -> Vec<Peer> {
        self.servers.iter().map(|server| peer(server.address())).collect()
    }

    pub(crate) async fn client(&self, wire: Wire) -> TableClient {
        connect(&self.peers(), &config(), wire, retry()).await.unwrap()
    }

    pub(crate) async fn stop(self) {
        for server in self.servers {
            server.stop(Duration::from_secs(5)).await;
        }
        self.hosts.into_iter().for_each(|host| host.stop().unwrap());
    }
}

pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A table in this process, with one shard.
pub(crate) fn local(config: TableConfig) -> (Host, TableClient) {
    let host = Host::start("local").unwrap();
    let table = start_table(&host, config, 1).unwrap();
    (host, table)
}

pub(crate) fn refused<T>(result: Result<T, Fault>, words: &[&str]) {
    let fault = result.err().expect("it should be refused");
    assert_eq!(fault.domain, Domain::User, "{fault}");
    assert!(words.iter().all(|word| fault.to_string().contains(word)), "{fault}");
}

/// When a connection is cut.
#[derive(Clone, Copy)]
pub(crate) enum Cut {
    /// After this many bytes, both directions together.
    Bytes(usize),
    /// After this many small pieces from the server; the next one is lost. Most are answers to pushes: the push was applied, and the
    /// client does not learn of it.
    Answer(usize),
}

/// Forwards connections to `to`, and cuts each as `cuts` say, in turn. Gives its address, and how many it has cut.
pub(crate) async fn cutting_proxy(to: SocketAddr, cuts: Vec<Cut>) -> (SocketAddr, Arc<AtomicUsize>) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let made = Arc::new(AtomicUsize::new(0));
    let count = made.clone();
    tokio::spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        sender.send(listener.local_addr().unwrap()).unwrap();
        for cut in cuts.into_iter().cycle() {
            let Ok((client, _)) = listener.accept().await else { return };
            let count = count.clone();
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(to).await else { return };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (bytes, answers) = match cut {
                    Cut::Bytes(bytes) => (bytes, usize::MAX),
                    Cut::Answer(answers) => (usize::MAX, answers),
                };
                let (bytes, answers, never) = (Left::new(bytes), Left::new(answers), Left::new(usize::MAX));
                let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
                // Dropped, all four halves close both sockets.
                let cut = tokio::select! {
                    cut = forward(from_client, to_server, &bytes, &never) => cut,
                    cut = forward(from_server, to_client, &bytes, &answers) => cut,
                };
                count.fetch_add(usize::from(cut), Ordering::Relaxed);
            });
        }
    });
    (receiver.await.unwrap(), made)
}

/// What is left of a budget.
struct Left(AtomicUsize);

impl Left {
    fn new(left: usize) -> Self {
        Self(AtomicUsize::new(left))
    }
    /// Takes at most `wanted`. Returns how much it took.
    fn take(&self, wanted: usize) -> usize {
        let before =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(wanted)));
        before.unwrap().min(wanted)
    }
}

/// True: it was cut. False: an end closed it.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, bytes: &Left, answers: &Left) -> bool {
    let mut buffer = vec![0; 4096];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return false };
        if read < 300 && answers.take(1) == 0 {
            return true;
        }
        let passed = bytes.take(read);
        if to.write_all(&buffer[..passed]).await.is_err() {
            return false;
        }
        if passed < read {
            return true;
        }
    }
}
