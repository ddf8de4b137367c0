//! What was heard of the processes of one rank, joined or not.

use std::collections::VecDeque;
use std::time::Instant;

/// How many starts of a rank are remembered. No request stays under way while so many processes start.
const REMEMBERED: usize = 64;

/// The starts of one rank.
#[derive(Debug)]
pub(super) struct Starts {
    /// The random numbers of the newest starts, in the order in which the processes were first heard of.
    nonces: VecDeque<u64>,
    /// When the newest process last gave a sign of life.
    pub(super) heard: Instant,
    /// The newest process has left.
    pub(super) left: bool,
    /// False if the newest process was silent for too long: then a run that can do without it does not wait.
    pub(super) awaited: bool,
}

impl Starts {
    pub(super) fn new(now: Instant) -> Self {
        Self { nonces: VecDeque::new(), heard: now, left: false, awaited: true }
    }

    /// A process gives a sign of life. If the process was replaced, this says nothing about its successor.
    pub(super) fn note_sign_of_life(&mut self, nonce: u64, now: Instant) {
        if !self.nonces.contains(&nonce) {
            self.nonces.push_back(nonce);
            self.left = false;
            if self.nonces.len() > REMEMBERED {
                self.nonces.pop_front();
            }
        }
        self.note_earlier_sign_of_life(nonce, now);
    }

    /// A process gave a sign of life at this time.
    pub(super) fn note_earlier_sign_of_life(&mut self, nonce: u64, at: Instant) {
        if self.newest() == Some(nonce) {
            self.heard = self.heard.max(at);
            self.awaited = true;
        }
    }

    pub(super) fn newest(&self) -> Option<u64> {
        self.nonces.back().copied()
    }

    pub(super) fn has_left(&mut self, nonce: u64) {
        self.left |= self.newest() == Some(nonce);
    }

    /// Whether the process of `nonce` was first heard of after the process of `other`. A process that was never heard of is the newest.
    pub(super) fn is_newer(&self, nonce: u64, other: u64) -> bool {
        let at = |nonce| self.nonces.iter().position(|start| *start == nonce);
        at(nonce).is_none_or(|new| at(other).is_none_or(|old| new > old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_starts_are_remembered() {
        let now = Instant::now();
        let mut starts = Starts::new(now);
        (0..1000).for_each(|nonce| starts.note_sign_of_life(nonce, now));
        assert_eq!(starts.nonces.len(), REMEMBERED);
        assert!(starts.is_newer(999, 990) && !starts.is_newer(990, 999));
        assert!(starts.is_newer(990, 5), "its process joined so long ago that its start is forgotten");
    }
}
