//! `forebay bench serve`: an open-loop load on a server that runs.
//!
//! Open loop: the times of requests do not depend on the answers, as with users. The latency of a request counts from its planned time. So
//! the latencies show a server that falls behind; a closed loop would send it fewer requests.

mod connection;
mod flight;
mod http;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use forebay_base::{SplitMix64, unit_f64};

use self::connection::Target;
use self::flight::FlightTarget;
use self::http::HttpTarget;
use crate::Fault;
use crate::actors::commas;
use crate::out;

/// Times of requests for scores at a given rate: forebay bench serve --body request.json --rate 500
///
/// Sends the same request over HTTP/1.1 or Arrow Flight at the times of a Poisson process, without waiting for earlier answers (open loop).
/// Prints the number of answers, and the times from each request's planned moment to its answer.
#[derive(Args)]
pub(crate) struct BenchServe {
    /// Where the server listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
    address: String,
    /// The request: what POST /v1/score takes; with --flight, a file of Arrow IPC, whose first record batch is the request.
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
    /// Send the request over Arrow Flight instead of HTTP.
    #[arg(long)]
    flight: bool,
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

/// The state that connections share.
struct Load {
    /// The moments of requests that have not begun, after `start`, in order.
    moments: Mutex<VecDeque<f64>>,
    times: Mutex<Vec<f64>>,
    start: Instant,
}

impl BenchServe {
    pub(crate) fn run(self) -> Result<(), Fault> {
        if !(self.rate > 0.0 && self.rate.is_finite() && self.seconds > 0.0 && self.seconds.is_finite()) {
            return Err(Fault::user("--rate and --seconds are numbers above 0"));
        }
        let target: Box<dyn Target> = match self.flight {
            true => Box::new(FlightTarget::new(&self.address, &self.body)?),
            false => Box::new(HttpTarget::new(&self.address, &self.body)?),
        };
        let (mut random, mut at, mut moments) = (SplitMix64::new(self.seed), 0.0, VecDeque::new());
        while at < WARM_UP + self.seconds {
            at -= (1.0 - unit_f64(random.next_u64())).ln() / self.rate;
            moments.push_back(at);
        }
        let load = Load {
            moments: Mutex::new(moments),
            times: Mutex::default(),
            start: Instant::now() + Duration::from_millis(50),
        };
        std::thread::scope(|scope| {
            let ask = || load.ask(&*target);
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, ask);
            let asking: std::io::Result<Vec<_>> = (0..self.connections.max(1)).map(start).collect();
            let asking = asking.map_err(|e| Fault::no_thread("a thread for each connection", e))?;
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

impl Load {
    /// Sends requests over one connection until all have begun.
    #[allow(clippy::disallowed_methods, reason = "the thread of one connection may sleep: no stage runs on it")]
    fn ask(&self, target: &dyn Target) -> Result<(), Fault> {
        let mut connection = target.connect()?;
        loop {
            let next = self.moments.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(moment) = next else { return Ok(()) };
            let begin = self.start + Duration::from_secs_f64(moment);
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
            connection.ask()?;
            if moment >= WARM_UP {
                let took = begin.elapsed().as_secs_f64();
                self.times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            }
        }
    }
}
