//! Locks a mutex, also after a thread has panicked with it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value of `mutex`. A panic while the mutex was locked was reported, and no value of this crate is left half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
