//! The two signals of a run: drain (the source stops, and the stages finish the batches under way) and kill (everything
//! stops).
//!
//! The first fault wins: the switch keeps it as the root cause, and then closes the links. So a fault that follows from
//! a closed link cannot become the root cause.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use crate::fault::Fault;
use crate::lock::lock;

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const KILLED: u8 = 2;

/// A link, which is closed and wakes its waiters when the run is killed.
pub(crate) trait Close: Send + Sync {
    fn close(&self);
}

#[derive(Clone, Default)]
pub(crate) struct Switch {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    signal: AtomicU8,
    /// Notified at drain or kill.
    stopping: Notify,
    /// Notified at kill only.
    killed: Notify,
    root: Mutex<Option<Fault>>,
    /// The text of the root cause; it stays when the fault is taken.
    reason: OnceLock<String>,
    links: Mutex<Vec<Arc<dyn Close>>>,
}

impl Switch {
    /// Closes `link` when the run is killed, or at once if it was killed already.
    pub(crate) fn closes(&self, link: Arc<dyn Close>) {
        let mut links = lock(&self.inner.links);
        if self.is_killed() {
            link.close();
        } else {
            links.push(link);
        }
    }

    pub(crate) fn drain(&self) {
        if self.inner.signal.compare_exchange(RUNNING, DRAINING, SeqCst, SeqCst).is_ok() {
            self.inner.stopping.notify_waiters();
        }
    }

    /// Stops the run. True if `fault` is the root cause, false if there was one and `fault` was only logged.
    pub(crate) fn kill(&self, fault: Fault) -> bool {
        {
            let mut root = lock(&self.inner.root);
            if self.is_killed() {
                tracing::debug!(%fault, "a casualty of the first fault");
                return false;
            }
            // The run returns the fault, so an error here would be in the logs twice.
            tracing::debug!(%fault, "the run is stopped");
            let _ = self.inner.reason.set(fault.to_string());
            *root = Some(fault);
            self.inner.signal.store(KILLED, SeqCst);
        }
        let links = std::mem::take(&mut *lock(&self.inner.links));
        for link in links {
            link.close();
        }
        self.inner.stopping.notify_waiters();
        self.inner.killed.notify_waiters();
        true
    }

    /// Whether drain or kill was asked for.
    pub(crate) fn is_stopping(&self) -> bool {
        self.inner.signal.load(SeqCst) != RUNNING
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.inner.signal.load(SeqCst) == KILLED
    }

    /// Resolves when drain or kill is asked for. Cancel safe.
    pub(crate) async fn stopping(&self) {
        self.until(DRAINING, &self.inner.stopping).await;
    }

    /// Resolves when the run is killed. Cancel safe.
    pub(crate) async fn killed(&self) {
        self.until(KILLED, &self.inner.killed).await;
    }

    async fn until(&self, level: u8, told: &Notify) {
        // Taken before the signal is read, so that no change in between is missed.
        let told = told.notified();
        if self.inner.signal.load(SeqCst) < level {
            told.await;
        }
    }

    /// The text of the root cause.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.inner.reason.get().map(String::as_str)
    }

    /// The root cause; `None` after the first call.
    pub(crate) fn take_root(&self) -> Option<Fault> {
        lock(&self.inner.root).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU8);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn the_first_fault_is_the_root_cause() {
        let switch = Switch::default();
        switch.drain();
        assert!(switch.is_stopping() && !switch.is_killed());
        assert!(switch.kill(Fault::user("first")));
        assert!(!switch.kill(Fault::user("second")));
        switch.drain();
        assert!(switch.is_killed());
        assert_eq!(switch.take_root().unwrap().message(), "first");
    }

    #[test]
    fn a_kill_closes_all_links_after_the_root_cause_is_kept() {
        struct Probe(Switch, AtomicU8);
        impl Close for Probe {
            fn close(&self) {
                assert!(self.0.is_killed() && self.0.reason().is_some());
                self.1.fetch_add(1, SeqCst);
            }
        }
        let switch = Switch::default();
        let early = Arc::new(Probe(switch.clone(), AtomicU8::new(0)));
        switch.closes(Arc::clone(&early) as Arc<dyn Close>);
        switch.drain();
        assert_eq!(early.1.load(SeqCst), 0, "a drain needs its links");
        switch.kill(Fault::user("now"));
        let late = Arc::new(Probe(switch.clone(), AtomicU8::new(0)));
        switch.closes(Arc::clone(&late) as Arc<dyn Close>);
        assert_eq!((early.1.load(SeqCst), late.1.load(SeqCst)), (1, 1));
    }

    /// A shell polls `killed` once and then waits for its waker, which a drain must not use up.
    #[tokio::test]
    async fn a_kill_wakes_who_slept_through_a_drain() {
        let switch = Switch::default();
        let woken = Arc::new(Woken::default());
        let waker = std::task::Waker::from(Arc::clone(&woken));
        let mut killed = std::pin::pin!(switch.killed());
        assert!(killed.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        switch.drain();
        assert_eq!(woken.0.load(SeqCst), 0);
        switch.kill(Fault::user("now"));
        assert_eq!(woken.0.load(SeqCst), 1);
    }

    #[tokio::test]
    async fn waiters_wake_at_their_level() {
        let switch = Switch::default();
        let mut killed = std::pin::pin!(switch.killed());
        let mut stopping = std::pin::pin!(switch.stopping());
        assert!(futures::poll!(killed.as_mut()).is_pending() && futures::poll!(stopping.as_mut()).is_pending());
        switch.drain();
        stopping.await;
        assert!(futures::poll!(killed.as_mut()).is_pending());
        switch.kill(Fault::user("now"));
        killed.await;
    }
}
