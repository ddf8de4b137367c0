//! Which processes know how the run ended: the coordinator's process waits for the others before it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::members::{Expected, Role};

/// How long the coordinator waits for a process that it has ever heard of.
const FOR_ANY: Duration = Duration::from_secs(10);

/// How long it waits for a process of the job that it has never heard of: a process that runs gives signs of life twice a second.
const FOR_UNHEARD: Duration = Duration::from_secs(2);

/// How long it waits for processes that load their part of a checkpoint: they learn the end when they join.
const FOR_LOADING: Duration = Duration::from_secs(60);

/// The processes of the run.
pub(super) struct EndNotices {
    expected: BTreeSet<(Role, u32)>,
    /// They asked what the attempt continues from, and have not joined since.
    asked: BTreeSet<(Role, u32)>,
    /// They know that the run has failed, or is over; or they have ended.
    notified: BTreeSet<(Role, u32)>,
    /// They were started again after the last row, and ask from time to time whether the run has work for them.
    waiting: BTreeSet<(Role, u32)>,
}

impl EndNotices {
    pub(super) fn new(expected: Expected) -> Self {
        let ranks = |role, count| (0..count).map(move |rank| (role, rank));
        let Expected { ps, trainers, readers } = expected;
        let all = [(Role::Ps, ps), (Role::Trainer, trainers), (Role::Reader, readers)];
        let expected = all.into_iter().flat_map(|(role, count)| ranks(role, count)).collect();
        Self { expected, asked: BTreeSet::new(), notified: BTreeSet::new(), waiting: BTreeSet::new() }
    }

    /// Another attempt begins. `present`: the processes of the last attempt, which will ask what this one continues from.
    pub(super) fn begin_attempt(&mut self, present: impl Iterator<Item = (Role, u32)>) {
        self.expected.extend(present);
        (self.asked, self.notified, self.waiting) = Default::default();
    }

    pub(super) fn mark_asked(&mut self, role: Role, rank: u32) {
        self.asked.insert((role, rank));
        self.waiting.remove(&(role, rank));
        self.notified.remove(&(role, rank));
    }

    pub(super) fn mark_joined(&mut self, role: Role, rank: u32) {
        self.asked.remove(&(role, rank));
    }

    pub(super) fn add_waiting(&mut self, role: Role, rank: u32) {
        self.waiting.insert((role, rank));
        self.notified.remove(&(role, rank));
    }

    /// The processes that ask for a plan or have one, and have not joined.
    pub(super) fn not_joined(&self) -> impl Iterator<Item = (Role, u32)> + '_ {
        self.waiting.union(&self.asked).copied()
    }

    /// A process receives the end of the run, or ends before it.
    pub(super) fn mark_notified(&mut self, role: Role, rank: u32) {
        self.notified.insert((role, rank));
    }

    /// A process has ended before it has joined.
    pub(super) fn mark_gone(&mut self, role: Role, rank: u32) {
        self.asked.remove(&(role, rank));
        self.waiting.remove(&(role, rank));
        self.mark_notified(role, rank);
    }

    /// How long to wait for the processes that do not know of the failure. `joined`: the processes that have joined. `heard`: those that
    /// the coordinator has heard of.
    pub(super) fn timeout_after_failure(
        &self,
        joined: &BTreeSet<(Role, u32)>,
        heard: impl Fn(Role, u32) -> bool,
    ) -> Duration {
        let Self { expected, asked, notified, .. } = self;
        if asked.iter().any(|process| !joined.contains(process) && !notified.contains(process)) {
            return FOR_LOADING;
        }
        let waits = |&(role, rank): &(Role, u32)| if heard(role, rank) { FOR_ANY } else { FOR_UNHEARD };
        let uninformed = expected.union(joined).filter(|process| !notified.contains(process));
        uninformed.map(waits).max().unwrap_or_default()
    }

    /// How long to wait for the `processes` that do not know how the run ended.
    pub(super) fn timeout_for(&self, mut processes: impl Iterator<Item = (Role, u32)>) -> Duration {
        if processes.all(|process| self.notified.contains(&process)) { Duration::ZERO } else { FOR_ANY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coordinator_waits_until_all_are_notified() {
        let mut notices = EndNotices::new(Expected { ps: 2, trainers: 1, readers: 1 });
        let (reader, trainer) = ((Role::Reader, 0), (Role::Trainer, 0));
        let all = |_, _| true;
        assert_eq!(notices.timeout_after_failure(&BTreeSet::new(), all), FOR_ANY);
        for role in [Role::Ps, Role::Trainer, Role::Reader] {
            (0..2).for_each(|rank| notices.mark_notified(role, rank));
        }
        assert_eq!(notices.timeout_after_failure(&BTreeSet::new(), all), Duration::ZERO);
        notices.begin_attempt(std::iter::empty());
        (0..2).for_each(|rank| notices.mark_notified(Role::Ps, rank));
        notices.mark_notified(trainer.0, trainer.1);
        assert_eq!(
            notices.timeout_after_failure(&BTreeSet::new(), all),
            FOR_ANY,
            "a reader that has not asked yet is told, too"
        );
        for (role, rank) in [(Role::Ps, 0), (Role::Ps, 1), trainer, reader] {
            notices.mark_asked(role, rank);
        }
        for (role, rank) in [(Role::Ps, 0), (Role::Ps, 1), trainer] {
            assert_eq!(notices.timeout_after_failure(&[reader].into(), all), FOR_LOADING);
            notices.mark_notified(role, rank);
        }
        assert_eq!(
            notices.timeout_after_failure(&[reader].into(), all),
            FOR_ANY,
            "the reader has joined and will ask soon"
        );
        notices.mark_notified(reader.0, reader.1);
        assert_eq!(notices.timeout_after_failure(&[reader].into(), all), Duration::ZERO);
        notices.begin_attempt([reader].into_iter());
        assert_eq!(notices.timeout_after_failure(&BTreeSet::new(), all), FOR_ANY);
        for (role, rank) in [(Role::Ps, 0), (Role::Ps, 1), trainer] {
            notices.mark_notified(role, rank);
        }
        assert_eq!(
            notices.timeout_after_failure(&BTreeSet::new(), all),
            FOR_ANY,
            "the reader of the last attempt will ask"
        );
        notices.mark_notified(reader.0, reader.1);
        assert_eq!(notices.timeout_after_failure(&BTreeSet::new(), all), Duration::ZERO);
    }

    /// A bug: a run that was stopped before it had begun ended ten seconds later, because of processes that had ended, too.
    #[test]
    fn the_coordinator_waits_for_a_moment_for_a_process_that_it_has_never_heard_of() {
        let mut notices = EndNotices::new(Expected { ps: 1, trainers: 1, readers: 1 });
        notices.mark_notified(Role::Ps, 0);
        let timeout = |notices: &EndNotices, role| {
            let heard = |of, _| of == role;
            notices.timeout_after_failure(&BTreeSet::new(), heard)
        };
        assert_eq!(timeout(&notices, Role::Ps), FOR_UNHEARD);
        assert_eq!(timeout(&notices, Role::Reader), FOR_ANY);
        notices.mark_gone(Role::Reader, 0);
        assert_eq!(timeout(&notices, Role::Reader), FOR_UNHEARD, "a trainer may be about to start");
        notices.mark_gone(Role::Trainer, 0);
        assert_eq!(timeout(&notices, Role::Reader), Duration::ZERO);
    }
}
