//! Retries an operation while its fault is retryable, with back-off and a log line every ten seconds.

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::{Fault, FaultKind};
use forebay_base::Backoff;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

/// A retry logs nothing before this time: processes that start together find each other earlier.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// The time between two log lines about the same wait.
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
    /// Called between two tries; a fault ends the retries. See [`unless`](Self::unless).
    pub given_up: Option<GivenUp>,
}

/// Returns the fault to give up with.
pub type GivenUp = Arc<dyn Fn() -> Option<Fault> + Send + Sync>;

/// The time between two calls of `given_up`.
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

    /// Runs `op` until it succeeds, fails with a fault that is not retryable, or time is up; then its last fault says how long the wait
    /// was. `what` is for the log: `the coordinator at 10.0.0.7:7600`.
    ///
    /// # Cancel safety
    /// As safe as `op`.
    pub async fn run<T, F>(&self, what: &str, mut op: impl FnMut() -> F) -> Result<T, Fault>
    where
        // Not `AsyncFnMut`: a future of one cannot be spawned (rust-lang/rust#110338).
        F: Future<Output = Result<T, Fault>>,
    {
        let mut attempts = Attempts { retry: self, what, begun: Instant::now(), said: None };
        let mut backoff = Backoff::full_jitter(self.first, self.most);
        loop {
            self.goes_on()?;
            match op().await {
                Ok(value) => {
                    attempts.succeeded();
                    return Ok(value);
                }
                Err(fault) => attempts.failed(fault, backoff.next_wait()).await?,
            }
        }
    }

    fn goes_on(&self) -> Result<(), Fault> {
        self.given_up.as_ref().and_then(|given_up| given_up()).map_or(Ok(()), Err)
    }
}

/// The attempts of one operation so far. Apart from [`Retry::run`], which is compiled for each operation.
struct Attempts<'a> {
    retry: &'a Retry,
    what: &'a str,
    begun: Instant,
    /// When the log last named the wait.
    said: Option<Instant>,
}

impl Attempts<'_> {
    fn succeeded(&self) {
        if self.said.is_some() {
            info!("{} is there, after {:.1} s", self.what, self.begun.elapsed().as_secs_f64());
        }
    }

    /// Waits until the next attempt, for `wait`, or until time is up.
    ///
    /// # Errors
    /// The fault, if it is not retryable or time is up; what [`Retry::unless`] gives up with.
    fn failed(&mut self, fault: Fault, wait: Duration) -> BoxFuture<'_, Result<(), Fault>> {
        async move {
            let Self { retry, what, begun, .. } = self;
            if !fault.retryable {
                return Err(fault);
            }
            let left = retry.within.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let waited = format!("gave up waiting for {what} after {:.1} s", begun.elapsed().as_secs_f64());
                return Err(Fault::external(waited).because(fault).kind(FaultKind::Timeout).retryable());
            }
            if begun.elapsed() >= SAY_AFTER && self.said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                warn!("waiting for {what}: {fault}");
                self.said = Some(Instant::now());
            }
            // The last try begins when time is up, however long the wait would be.
            let until = Instant::now() + wait.min(left);
            while Instant::now() < until {
                retry.goes_on()?;
                sleep(ASK_EVERY.min(until - Instant::now())).await;
            }
            Ok(())
        }
        .boxed()
    }
}
