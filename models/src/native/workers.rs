//! Runs a list of independent tasks on the caller's thread and on others. Blocks until all are done.

use std::sync::Mutex;

use crate::ModelError;

/// Nanoseconds of work for which another thread is woken. With a fifth of this work, waking and waiting take longer than the thread saves
/// (measured on 16 cores).
const WORTH_A_THREAD: usize = 200_000;

/// The threads of one model.
pub(super) struct Workers {
    threads: usize,
    /// The pool has as many threads; `None` when the caller works alone. When the caller works, too, one thread of the pool is not used.
    pool: Option<rayon::ThreadPool>,
}

impl Workers {
    /// `threads` in all, the caller's included.
    pub(super) fn new(threads: usize) -> Result<Workers, ModelError> {
        if threads == 0 || threads > 1024 {
            return Err(ModelError::Setting(format!("{threads} threads asked for, expected 1 to 1024")));
        }
        if threads == 1 {
            return Ok(Workers { threads, pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("dense-{}", index + 1))
            .build()
            .map_err(|error| ModelError::Threads { threads, error: error.to_string() })?;
        Ok(Workers { threads, pool: Some(pool) })
    }

    /// Threads, the caller's included.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// As [`each`](Self::each), for tasks that share work among the pool's threads themselves: all work runs there.
    pub(super) fn each_within<T: Send>(&self, tasks: Vec<T>, work: impl Fn(T) + Sync) {
        match &self.pool {
            None => tasks.into_iter().for_each(work),
            Some(pool) => pool.scope(|scope| {
                let work = &work;
                tasks.into_iter().for_each(|task| scope.spawn(move |_| work(task)));
            }),
        }
    }

    /// How many threads are worth waking for work that takes one thread this many nanoseconds.
    pub(super) fn worth(&self, nanoseconds: usize) -> usize {
        (nanoseconds / WORTH_A_THREAD).clamp(1, self.threads)
    }

    /// Runs `work` once for each task, on at most `threads` threads: the caller's, and others of the pool. Idle threads take
    /// tasks in order.
    pub(super) fn each<T: Send>(&self, threads: usize, tasks: Vec<T>, work: impl Fn(T) + Sync) {
        let helpers = threads.min(self.threads).min(tasks.len()).saturating_sub(1);
        let Some(pool) = self.pool.as_ref().filter(|_| helpers > 0) else {
            tasks.into_iter().for_each(work);
            return;
        };
        let queue = Mutex::new(tasks.into_iter());
        let drain = || {
            while let Some(task) = take(&queue) {
                work(task);
            }
        };
        pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| drain());
            }
            drain();
        });
    }
}

/// The next task. No task runs under the lock, so a panic in one cannot poison it.
fn take<T>(queue: &Mutex<std::vec::IntoIter<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 5] {
            let workers = Workers::new(threads).unwrap();
            for count in [0, 1, 2, 37] {
                let mut done = vec![0u32; count];
                let tasks: Vec<&mut u32> = done.iter_mut().collect();
                workers.each(threads, tasks, |slot| *slot += 1);
                let tasks: Vec<&mut u32> = done.iter_mut().collect();
                workers.each_within(tasks, |slot| *slot += 1);
                assert!(done.iter().all(|&times| times == 2), "{threads} {count}");
            }
        }
        assert!(Workers::new(0).is_err());
    }
}
