//! Waits with a deadline: a test that waits too long fails and says what it waited for.

use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `holds` is true.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "not after {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

/// The same on a thread that runs the tasks that are waited for.
pub async fn until_on_this_thread(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "not after {DEADLINE:?}: {what}");
        tokio::task::yield_now().await;
    }
}
