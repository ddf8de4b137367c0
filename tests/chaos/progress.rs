//! When a run makes progress, by the metrics of its first trainer, and how long it does not after harm was done.
//!
//! The trainer makes new metrics twice a second at most, so times below a second say little.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::harm::{Done, Harm};

const EVERY: Duration = Duration::from_millis(100);

/// If harm comes this long after the last progress, the run already stood still because of earlier harm.
const STANDS_STILL: Duration = Duration::from_millis(1500);

/// How long runs stood still, by what was done to which role.
pub(crate) type Times = BTreeMap<(Harm, String), Vec<Duration>>;

/// Follows a run until it is dropped.
pub(crate) struct Watch {
    seen: Arc<Mutex<Vec<Instant>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `connect` reaches the dashboard of the first trainer.
    pub(crate) fn new(connect: impl Fn() -> io::Result<TcpStream> + Send + 'static) -> Self {
        let (seen, ended) = (Arc::<Mutex<Vec<Instant>>>::default(), Arc::<AtomicBool>::default());
        let (seen_too, ended_too) = (Arc::clone(&seen), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            let mut last = 0;
            while !ended_too.load(Ordering::Relaxed) {
                // No process answers while the trainer is dead.
                if let Some(rows) = connect().and_then(metrics).ok().as_deref().and_then(rows) {
                    if rows > last {
                        seen_too.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                    }
                    last = rows;
                }
                std::thread::sleep(EVERY);
            }
        });
        Self { seen, ended, thread: Some(thread) }
    }

    /// Adds to `times` how long the run stood still after each harm. Left out is harm that met a run that stood still already, and
    /// harm after which others were done before the run went on, or the run ended.
    pub(crate) fn times(&self, done: &[Done], times: &mut Times) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (at, harm) in done.iter().enumerate() {
            let next = done.get(at + 1).map(|next| next.at);
            if let Some(time) = stood_still(&seen, harm.at, next) {
                times.entry((harm.harm, harm.role.clone())).or_default().push(time);
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest time from `harm`, or later progress, to the next progress, before `next`.
fn stood_still(progress: &[Instant], harm: Instant, next: Option<Instant>) -> Option<Duration> {
    let before = progress.iter().rfind(|at| **at <= harm)?;
    let after: Vec<Instant> =
        progress.iter().copied().filter(|at| *at > harm && next.is_none_or(|n| *at < n)).collect();
    let last = *after.last()?;
    let stands_still = |from: Instant, to: Instant| to.duration_since(from) > STANDS_STILL;
    if stands_still(*before, harm) || next.is_some_and(|next| stands_still(last, next)) {
        return None;
    }
    let begins = std::iter::once(harm).chain(after.iter().copied());
    begins.zip(&after).map(|(from, to)| to.duration_since(from)).max()
}

/// A line for each kind of harm and role: least, median and most.
pub(crate) fn print(times: &Times) {
    for ((harm, role), times) in times {
        let mut seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        seconds.sort_by(f64::total_cmp);
        let [least, median, most] = [0, seconds.len() / 2, seconds.len() - 1].map(|at| seconds[at]);
        println!(
            "time to go on, {harm}, {role}: {least:.1} s, {median:.1} s, {most:.1} s (least, median, most of {})",
            seconds.len()
        );
    }
}

fn metrics(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn rows(metrics: &str) -> Option<u64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix("forebay_train_rows_total "))?;
    line.trim().parse::<f64>().ok().map(|rows| rows as u64)
}

#[test]
fn a_time_is_that_until_the_run_goes_on() {
    let begun = Instant::now();
    let second = |n: u64| begun + Duration::from_millis(n * 1000);
    let progress = [1, 2, 3, 9, 10, 11].map(second);
    let still =
        |harm: u64, next: Option<u64>| stood_still(&progress, second(harm), next.map(second)).map(|t| t.as_secs());
    assert_eq!(still(2, None), Some(6), "a batch under way was done before it stood still");
    assert_eq!(still(3, None), Some(6));
    assert_eq!(still(3, Some(6)), None, "other harm came before it went on");
    assert_eq!(still(5, None), None, "it stood still already");
    assert_eq!(still(9, None), Some(1));
    assert_eq!(still(11, None), None, "the run ended");
}
