//! The end of a synchronous training that drains while a reader is lost. Some trainers have their batch of the last round, but the lost
//! reader had the batch of another trainer. No other reader reads that batch, so the push of the round would never be complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::cluster::RunStatus;

/// How long a push waits for the others of its round when they may never come. Trainers that have their batches push at once.
const LAST_SHARES: Duration = Duration::from_secs(5);

/// Decides when the rounds of one trainer are over although it has batches left. Clones share the state.
#[derive(Clone)]
pub(crate) struct RoundsEnd {
    status: watch::Receiver<RunStatus>,
    over: Arc<AtomicBool>,
    timeout: Duration,
}

impl RoundsEnd {
    /// The end of the rounds of a trainer that receives these statuses.
    pub(crate) fn new(status: watch::Receiver<RunStatus>) -> Self {
        Self { status, over: Arc::default(), timeout: LAST_SHARES }
    }

    /// Whether a push was given up: then later pushes have no round, either.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Waits until a push that began to wait at this call must be given up. Cancel safe: the time starts again.
    pub(crate) async fn give_up(&self) {
        let mut status = self.status.clone();
        if status.wait_for(RunStatus::lacks_rows_in_the_end).await.is_err() {
            // The run ends in another way.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(self.timeout).await;
        if !self.over.swap(true, Ordering::SeqCst) {
            tracing::warn!(
                "the last step is left out: a reader was lost while the run drained, and a trainer lacks its batch"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cluster::RunPhase;

    #[tokio::test]
    async fn a_push_is_given_up_only_after_a_drain_that_lacks_rows_and_never_at_once() {
        let (sender, status) = watch::channel(RunStatus::gathering());
        let rounds = RoundsEnd { timeout: Duration::from_millis(50), ..RoundsEnd::new(status) };
        let lacks = |phase: RunPhase, done, returned_leases| {
            sender.send_modify(|status| {
                (status.phase, status.windows_done, status.windows_total) = (phase, done, 9);
                status.returned_leases = returned_leases;
            });
        };
        let given_up = |within: u64| tokio::time::timeout(Duration::from_millis(within), rounds.give_up());
        // While the run goes on, when it has drained with all rows that it has begun, and when it has all rows.
        for (phase, done, returned) in
            [(RunPhase::Running, 4, 1), (RunPhase::Finished, 4, 0), (RunPhase::Finished, 9, 1)]
        {
            lacks(phase, done, returned);
            assert!(given_up(150).await.is_err() && !rounds.is_over());
        }
        lacks(RunPhase::Finished, 4, 1);
        let begun = Instant::now();
        given_up(60_000).await.unwrap();
        assert!(rounds.is_over() && begun.elapsed() >= rounds.timeout);
    }
}
