//! Retries an operation while its fault is retryable, with back-off and a log line now and then.

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::{Fault, FaultKind};
use forebay_base::Backoff;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// How often the log repeats what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Waits of random lengths (full jitter: from 0 to a bound that doubles each time), for faults that are `retryable`.
#[derive(Clone)]
pub struct Retry {
    /// The bound of the first wait.
    pub first: Duration,
    /// The largest bound.
    pub most: Duration,
    /// No try begins later than this after the first.
    pub within: Duration,
    /// Asked between two tries; a fault ends them. See [`unless`](Self::unless).
    pub given_up: Option<GivenUp>,
}

/// Returns the fault to give up with.
pub type GivenUp = Arc<dyn Fn() -> Option<Fault> + Send + Sync>;

/// How often it is asked whether to give up.
const ASK_EVERY: Duration = Duration::from_millis(200);

impl Retry {
    /// From 50 ms to 5 s, for as long as `within`.
    pub fn within(within: Duration) -> Self {
        Self { first: Duration::from_millis(50), most: Duration::from_secs(5), within, given_up: None }
    }

    /// Gives up with the fault that `given_up` returns. It is asked before each try, and several times a second between
    /// two.
    #[must_use]
    pub fn unless(self, given_up: impl Fn() -> Option<Fault> + Send + Sync + 'static) -> Self {
        Self { given_up: Some(Arc::new(given_up)), ..self }
    }

    /// Runs `op` until it succeeds, fails with a fault that is not retryable, or time is up; then its last fault says
    /// how long was waited. `what` is for the log: `the coordinator at 10.0.0.7:7600`.
    ///
    /// # Cancel safety
    /// As safe as `op`.
    pub async fn run<T, F>(&self, what: &str, mut op: impl FnMut() -> F) -> Result<T, Fault>
    where
        // Not `AsyncFnMut`: a future of one cannot be spawned (rust-lang/rust#110338).
        F: Future<Output = Result<T, Fault>>,
    {
        let begun = Instant::now();
        let (mut backoff, mut said) = (Backoff::full_jitter(self.first, self.most), None::<Instant>);
        let given_up = || self.given_up.as_ref().and_then(|given_up| given_up());
        loop {
            if let Some(fault) = given_up() {
                return Err(fault);
            }
            let fault = match op().await {
                Ok(value) => {
                    if said.is_some() {
                        info!("{what} is there, after {:.1} s", begun.elapsed().as_secs_f64());
                    }
                    return Ok(value);
                }
                Err(fault) if !fault.retryable => return Err(fault),
                Err(fault) => fault,
            };
            let left = self.within.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let waited = format!("gave up waiting for {what} after {:.1} s", begun.elapsed().as_secs_f64());
                return Err(Fault::external(waited).because(fault).kind(FaultKind::Timeout).retryable());
            }
            if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                warn!("waiting for {what}: {fault}");
                said = Some(Instant::now());
            }
            // The last try begins when time is up, however long the wait would be.
            let until = Instant::now() + backoff.next_wait().min(left);
            while Instant::now() < until {
                if let Some(fault) = given_up() {
                    return Err(fault);
                }
                sleep(ASK_EVERY.min(until - Instant::now())).await;
            }
        }
    }
}
