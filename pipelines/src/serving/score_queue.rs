//! The work of the scoring threads: requests, and parts of requests that another thread has begun.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a thread does next.
pub(super) enum Work<R, P> {
    /// To begin a request.
    Request(R),
    /// To help with a request that another thread has begun.
    Part(P),
}

/// A bounded queue of requests `R`, and of parts `P` of those under way, which come first.
pub(super) struct ScoreQueue<R, P> {
    waiting: Mutex<Waiting<R, P>>,
    changed: Condvar,
    /// Requests that may wait.
    capacity: usize,
}

struct Waiting<R, P> {
    requests: VecDeque<R>,
    parts: VecDeque<P>,
    /// Threads that wait for something to do.
    idle: usize,
    closed: bool,
}

impl<R, P: Clone> ScoreQueue<R, P> {
    pub(super) fn new(capacity: usize) -> Self {
        let waiting = Waiting { requests: VecDeque::new(), parts: VecDeque::new(), idle: 0, closed: false };
        Self { waiting: Mutex::new(waiting), changed: Condvar::new(), capacity }
    }

    /// Puts a request behind the others. `false` if too many wait.
    pub(super) fn push(&self, request: R) -> bool {
        let mut waiting = self.lock();
        if waiting.requests.len() >= self.capacity {
            return false;
        }
        waiting.requests.push_back(request);
        drop(waiting);
        self.changed.notify_one();
        true
    }

    /// Gives a part to up to `most` threads that have nothing to do. Returns their number.
    pub(super) fn ask_for_help(&self, part: &P, most: usize) -> usize {
        let mut waiting = self.lock();
        // A thread that was notified counts as idle until it wakes.
        let free = waiting.idle.saturating_sub(waiting.requests.len() + waiting.parts.len());
        let asked = free.min(most);
        waiting.parts.extend((0..asked).map(|_| part.clone()));
        drop(waiting);
        (0..asked).for_each(|_| self.changed.notify_one());
        asked
    }

    /// Whether a thread has nothing to do.
    pub(super) fn has_idle_threads(&self) -> bool {
        let waiting = self.lock();
        waiting.idle > waiting.requests.len() + waiting.parts.len()
    }

    /// Waits for something to do; `None` when the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Work<R, P>> {
        let mut waiting = self.lock();
        loop {
            if let Some(part) = waiting.parts.pop_front() {
                return Some(Work::Part(part));
            }
            if let Some(request) = waiting.requests.pop_front() {
                return Some(Work::Request(request));
            }
            if waiting.closed {
                return None;
            }
            waiting.idle += 1;
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.idle -= 1;
        }
    }

    /// Ends the threads after the requests that wait.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Waiting<R, P>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    fn request(queue: &ScoreQueue<u32, char>) -> Option<u32> {
        match queue.take()? {
            Work::Request(request) => Some(request),
            Work::Part(_) => panic!("no part was asked for"),
        }
    }

    #[test]
    fn requests_come_in_order_are_bounded_and_all_taken_before_the_end() {
        let queue = ScoreQueue::new(2);
        assert_eq!([1, 2, 3].map(|number| queue.push(number)), [true, true, false]);
        queue.close();
        assert_eq!([(); 3].map(|()| request(&queue)), [Some(1), Some(2), None]);
    }

    #[test]
    fn only_threads_that_have_nothing_to_do_are_asked_for_help_and_help_comes_before_requests() {
        let queue = ScoreQueue::new(8);
        assert!(queue.push(1));
        assert_eq!((queue.has_idle_threads(), queue.ask_for_help(&'a', 4)), (false, 0));
        assert_eq!(request(&queue), Some(1));
        thread::scope(|scope| {
            let idle: Vec<_> = (0..2).map(|_| scope.spawn(|| queue.take())).collect();
            let begun = Instant::now();
            while queue.lock().idle < 2 && begun.elapsed() < DEADLINE {
                thread::yield_now();
            }
            let waiting = queue.lock().idle;
            if waiting < 2 {
                // The scope waits for its threads also when the test fails.
                queue.close();
            }
            assert_eq!(waiting, 2, "threads that wait for something to do, after {DEADLINE:?}");
            assert!(queue.has_idle_threads());
            {
                // As if a request had notified one of them, which has not woken yet.
                let mut waiting = queue.lock();
                waiting.requests.push_back(7);
            }
            assert_eq!(queue.ask_for_help(&'a', 4), 1);
            queue.changed.notify_all();
            let taken: Vec<bool> =
                idle.into_iter().map(|thread| matches!(thread.join(), Ok(Some(Work::Part(_))))).collect();
            assert_eq!(taken.iter().filter(|part| **part).count(), 1, "the other one took the request");
        });
    }
}
