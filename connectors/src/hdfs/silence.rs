//! Says that HDFS does not answer, while something waits for it as long as it takes.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// A NameNode that has not answered for this long hangs: its calls take milliseconds, under load seconds.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Waits for an answer, and warns while there is none. `root` and `path` are for messages.
pub(super) async fn warn_while_silent<T>(root: &str, path: &str, answer: impl Future<Output = T>) -> T {
    warn_every(ANSWER_WITHIN, root, path, answer).await
}

async fn warn_every<T>(every: Duration, root: &str, path: &str, answer: impl Future<Output = T>) -> T {
    let (mut answer, since) = (pin!(answer), Instant::now());
    loop {
        if let Ok(answer) = timeout(every, answer.as_mut()).await {
            return answer;
        }
        tracing::warn!(store = root, path, waited = ?since.elapsed(), "the NameNode or a DataNode does not answer, waiting for it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_is_waited_for() {
        let late = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            7
        };
        assert_eq!(warn_while_silent("hdfs://there", "/file", late).await, 7);
    }
}
