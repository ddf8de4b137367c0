//! `forebay bench serve`: an open-loop load on a server that runs.
//!
//! Open loop: the times of requests do not depend on the answers, as with users. The latency of a request counts from the moment at which
//! it was due. So the latencies show a server that falls behind; a closed loop would send it fewer requests.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_base::{SplitMix64, unit_f64};

use crate::Fault;
use crate::actors::commas;
use crate::out;

/// Times of requests for scores at a given rate: forebay bench serve --body request.json --rate 500
///
/// Sends the same request over HTTP/1.1 at the times of a Poisson process, without waiting for earlier answers (open loop). Prints the rate
/// of answers, and the times from each request's planned moment to its answer.
#[derive(Args)]
pub(crate) struct Serve {
    /// Where the server listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
    address: String,
    /// The body of the request: what POST /v1/score takes.
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// Requests per second.
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    rate: f64,
    /// Seconds to measure, after two seconds of warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// The most requests at a time. Further requests wait in the client, and the wait counts in their time.
    #[arg(long, value_name = "N", default_value_t = 64)]
    connections: usize,
    /// Seed of the times of requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Seconds of load that are not counted.
const WARM_UP: f64 = 2.0;

/// What is shared by the connections.
struct Load {
    /// The moments of requests that have not begun, after `start`, in order.
    moments: Mutex<VecDeque<f64>>,
    times: Mutex<Vec<f64>>,
    start: Instant,
    request: Vec<u8>,
}

impl Serve {
    pub(crate) fn run(self) -> Result<(), Fault> {
        if !(self.rate > 0.0 && self.rate.is_finite() && self.seconds > 0.0 && self.seconds.is_finite()) {
            return Err(Fault::user("--rate and --seconds are numbers above 0"));
        }
        let body = std::fs::read(&self.body)
            .map_err(|e| Fault::user(format!("cannot read {}", self.body.display())).because(e))?;
        let head = format!(
            "POST /v1/score HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        let (mut random, mut at, mut moments) = (SplitMix64::new(self.seed), 0.0, VecDeque::new());
        while at < WARM_UP + self.seconds {
            at -= (1.0 - unit_f64(random.next_u64())).ln() / self.rate;
            moments.push_back(at);
        }
        let load = Load {
            moments: Mutex::new(moments),
            times: Mutex::default(),
            start: Instant::now() + Duration::from_millis(50),
            request: [head.as_bytes(), &body].concat(),
        };
        std::thread::scope(|scope| {
            let ask = || ask(&self.address, &load);
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, ask);
            let asking: std::io::Result<Vec<_>> = (0..self.connections.max(1)).map(start).collect();
            let asking = asking.map_err(|e| Fault::external("cannot start a thread for each connection").because(e))?;
            asking.into_iter().try_for_each(|thread| {
                thread.join().map_err(|panic| Fault::of_panic("a connection of the load panicked", &*panic))?
            })
        })?;
        let mut times = load.times.into_inner().unwrap_or_else(PoisonError::into_inner);
        times.sort_by(f64::total_cmp);
        let last = times.len().saturating_sub(1);
        let quantile = |share: f64| times.get(((times.len() as f64 * share) as usize).min(last)).copied();
        let millis = |share: f64| quantile(share).unwrap_or(f64::NAN) * 1e3;
        out::print(format_args!(
            "{} requests in {} s: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms",
            commas(times.len() as u64),
            self.seconds,
            millis(0.5),
            millis(0.9),
            millis(0.99),
            millis(0.999),
            millis(1.0)
        ))
    }
}

/// Sends requests over one connection until all have begun.
#[allow(clippy::disallowed_methods, reason = "the thread of one connection may sleep: no stage runs on it")]
fn ask(address: &str, load: &Load) -> Result<(), Fault> {
    let cannot = |e: io::Error| Fault::external(format!("the server at {address} does not answer")).because(e);
    let mut socket = TcpStream::connect(address).map_err(cannot)?;
    let _ = socket.set_nodelay(true);
    let mut answer = Vec::new();
    loop {
        let next = load.moments.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(moment) = next else { return Ok(()) };
        let begin = load.start + Duration::from_secs_f64(moment);
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        socket.write_all(&load.request).map_err(cannot)?;
        read_answer(&mut socket, &mut answer).map_err(cannot)?;
        if moment >= WARM_UP {
            let took = begin.elapsed().as_secs_f64();
            load.times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        }
    }
}

/// Reads one answer with a `Content-Length`; fails unless its status is 200.
fn read_answer(socket: &mut TcpStream, answer: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 16 << 10];
    let mut more = |answer: &mut Vec<u8>| match socket.read(&mut piece)? {
        0 => Err(io::Error::other("it closed the connection")),
        n => {
            answer.extend_from_slice(&piece[..n]);
            Ok(())
        }
    };
    answer.clear();
    let end = loop {
        more(answer)?;
        if let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    if !head.starts_with("http/1.1 200") {
        let said = String::from_utf8_lossy(&answer[..answer.len().min(400)]).into_owned();
        return Err(io::Error::other(format!("it refuses the request: {said}")));
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let length = length.ok_or_else(|| io::Error::other("its answer has no length"))?;
    while answer.len() < end + 4 + length {
        more(answer)?;
    }
    Ok(())
}
