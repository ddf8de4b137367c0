//! Which processes have heard how the run ended: the coordinator's process waits for the others before it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::members::{Expected, Role};

/// How long the coordinator waits for processes that it has heard nothing of in this attempt, or for some time.
const FOR_ANY: Duration = Duration::from_secs(10);

/// How long it waits for processes that load their part of a checkpoint: they hear it when they join.
const FOR_LOADING: Duration = Duration::from_secs(60);

/// The processes of the run.
pub(super) struct Audience {
    expected: BTreeSet<(Role, u32)>,
    /// They asked what the attempt goes on from.
    asked: BTreeSet<(Role, u32)>,
    /// They know that the run has failed, or is over; or they have ended.
    told: BTreeSet<(Role, u32)>,
    /// They were started again when there was nothing left for them to do, and ask now and then whether there is.
    kept_waiting: BTreeSet<(Role, u32)>,
}

impl Audience {
    pub(super) fn new(expected: Expected) -> Self {
        let ranks = |role, count| (0..count).map(move |rank| (role, rank));
        let Expected { ps, trainers, readers } = expected;
        let all = [(Role::Ps, ps), (Role::Trainer, trainers), (Role::Reader, readers)];
        let expected = all.into_iter().flat_map(|(role, count)| ranks(role, count)).collect();
        Self { expected, asked: BTreeSet::new(), told: BTreeSet::new(), kept_waiting: BTreeSet::new() }
    }

    /// Another attempt begins. `present`: those that took part in the last one, and will ask what this one goes on from.
    pub(super) fn begin_attempt(&mut self, present: impl Iterator<Item = (Role, u32)>) {
        self.expected.extend(present);
        (self.asked, self.told, self.kept_waiting) = Default::default();
    }

    pub(super) fn asks(&mut self, role: Role, rank: u32) {
        self.asked.insert((role, rank));
        self.told.remove(&(role, rank));
    }

    pub(super) fn is_kept_waiting(&mut self, role: Role, rank: u32) {
        self.kept_waiting.insert((role, rank));
        self.told.remove(&(role, rank));
    }

    pub(super) fn was_kept_waiting(&self, role: Role, rank: u32) -> bool {
        self.kept_waiting.contains(&(role, rank))
    }

    pub(super) fn kept_waiting(&self) -> impl Iterator<Item = (Role, u32)> + '_ {
        self.kept_waiting.iter().copied()
    }

    /// A process receives the end of the run, or ends before it.
    pub(super) fn hears(&mut self, role: Role, rank: u32) {
        self.told.insert((role, rank));
    }

    /// How long to wait for those that do not know of the failure, if these processes have joined.
    pub(super) fn wait(&self, joined: &BTreeSet<(Role, u32)>) -> Duration {
        let Self { expected, asked, told, .. } = self;
        if asked.iter().any(|process| !joined.contains(process) && !told.contains(process)) {
            return FOR_LOADING;
        }
        self.wait_for(expected.union(joined).copied())
    }

    /// How long to wait for those of `processes` that do not know how the run ended.
    pub(super) fn wait_for(&self, mut processes: impl Iterator<Item = (Role, u32)>) -> Duration {
        if processes.all(|process| self.told.contains(&process)) { Duration::ZERO } else { FOR_ANY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coordinator_waits_until_all_have_heard() {
        let mut audience = Audience::new(Expected { ps: 2, trainers: 1, readers: 1 });
        let (reader, trainer) = ((Role::Reader, 0), (Role::Trainer, 0));
        assert_eq!(audience.wait(&BTreeSet::new()), FOR_ANY);
        for role in [Role::Ps, Role::Trainer, Role::Reader] {
            (0..2).for_each(|rank| audience.hears(role, rank));
        }
        assert_eq!(audience.wait(&BTreeSet::new()), Duration::ZERO);
        audience.begin_attempt(std::iter::empty());
        (0..2).for_each(|rank| audience.hears(Role::Ps, rank));
        audience.hears(trainer.0, trainer.1);
        assert_eq!(audience.wait(&BTreeSet::new()), FOR_ANY, "a reader that has not asked yet is told, too");
        for (role, rank) in [(Role::Ps, 0), (Role::Ps, 1), trainer, reader] {
            audience.asks(role, rank);
        }
        for (role, rank) in [(Role::Ps, 0), (Role::Ps, 1), trainer] {
            assert_eq!(audience.wait(&[reader].into()), FOR_LOADING);
            audience.hears(role, rank);
        }
        assert_eq!(audience.wait(&[reader].into()), FOR_ANY, "the reader has joined and will ask soon");
        audience.hears(reader.0, reader.1);
        assert_eq!(audience.wait(&[reader].into()), Duration::ZERO);
        audience.begin_attempt([reader].into_iter());
        assert_eq!(audience.wait(&BTreeSet::new()), FOR_ANY);
        for (role, rank) in [(Role::Ps, 0), (Role::Ps, 1), trainer] {
            audience.hears(role, rank);
        }
        assert_eq!(audience.wait(&BTreeSet::new()), FOR_ANY, "the reader of the last attempt will ask");
        audience.hears(reader.0, reader.1);
        assert_eq!(audience.wait(&BTreeSet::new()), Duration::ZERO);
    }
}
