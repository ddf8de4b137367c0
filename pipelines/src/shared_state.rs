//! State that tasks share, and waiting for its changes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A state under a lock that no panic poisons. Tasks can wait for its changes.
#[derive(Debug, Default)]
pub(crate) struct SharedState<T> {
    state: Mutex<T>,
    changed: Notify,
}

impl<T> SharedState<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all tasks in [`when`](Self::when) and [`until`](Self::until). Call it after a change through [`lock`](Self::lock), which wakes
    /// no task.
    pub(crate) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Changes the state, then wakes the waiting tasks.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.notify();
        result
    }

    /// Calls `find` at once and after each change, until it finds something. Cancel safe.
    pub(crate) async fn when<R>(&self, mut find: impl FnMut(&mut T) -> Option<R>) -> R {
        loop {
            // Taken before the look at the state, so that no change between the two is missed.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = find(&mut self.lock()) {
                return found;
            }
            changed.await;
        }
    }

    /// Waits until `holds` returns true. Cancel safe.
    pub(crate) async fn until(&self, mut holds: impl FnMut(&mut T) -> bool) {
        self.when(|state| holds(state).then_some(())).await;
    }
}
