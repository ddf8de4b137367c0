//! Distinguishes silence from long work, and warns that HDFS does not answer during waits without a limit.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// A NameNode that has not answered for this long hangs: its calls take milliseconds, under load seconds.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Counts the answers to a call that takes several.
#[derive(Debug, Default)]
pub(super) struct Heard(AtomicU64);

impl Heard {
    /// Counts an answer.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn answers(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Waits for the end of `work`. `None`: nothing was heard for that long, neither its end nor an answer.
pub(super) async fn timeout_unless_heard<T>(
    for_long: Duration,
    heard: &Heard,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let before = heard.answers();
        if let Ok(done) = timeout(for_long, work.as_mut()).await {
            return Some(done);
        }
        if heard.answers() == before {
            return None;
        }
    }
}

/// Waits for the end of `work`, and warns while nothing is heard. `root` and `path` are for messages.
pub(super) async fn warn_while_silent<T>(root: &str, path: &str, heard: &Heard, work: impl Future<Output = T>) -> T {
    let (mut work, since) = (pin!(work), Instant::now());
    loop {
        if let Some(done) = timeout_unless_heard(ANSWER_WITHIN, heard, work.as_mut()).await {
            return done;
        }
        tracing::warn!(store = root, path, waited = ?since.elapsed(), "the NameNode or a DataNode does not answer, waiting for it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of so many answers, one every 15 s, and silence of so many seconds after them.
    async fn work(heard: &Heard, answers: u32, silence: u64) -> u32 {
        for _ in 0..answers {
            tokio::time::sleep(Duration::from_secs(15)).await;
            heard.add();
        }
        tokio::time::sleep(Duration::from_secs(silence)).await;
        answers
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_is_waited_for() {
        let heard = Heard::default();
        assert_eq!(warn_while_silent("hdfs://there", "/file", &heard, work(&heard, 7, 100)).await, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_heard_of_is_not_silent_however_long_it_takes() {
        for (answers, silence, expected) in
            [(0, 19, Some(0)), (100, 0, Some(100)), (100, 1, Some(100)), (0, 21, None), (3, 60, None)]
        {
            let heard = Heard::default();
            let done = timeout_unless_heard(ANSWER_WITHIN, &heard, work(&heard, answers, silence)).await;
            assert_eq!(done, expected, "{answers} answers, then {silence} s");
        }
    }
}
