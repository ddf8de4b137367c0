//! Who takes part: the processes of a run by role and rank, which start of each is the valid one, and who was heard of when.
//!
//! Comes in: joins and signs of life, with the time. Goes out: incarnations, addresses, who is missing, who is lost. A state
//! machine without a clock of its own and without IO: nothing blocks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds shards.
    Ps,
    /// Computes.
    Trainer,
    /// Reads, parses, batches.
    Reader,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ps => "ps",
            Self::Trainer => "trainer",
            Self::Reader => "reader",
        })
    }
}

/// How many of each role the job names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) ps: u32,
    pub(crate) trainers: u32,
    pub(crate) readers: u32,
}

#[derive(Debug)]
struct Member {
    incarnation: u64,
    address: Option<String>,
    heard: Instant,
    /// Was not heard of for too long, or said good-bye.
    gone: bool,
}

/// The members of one run.
#[derive(Debug)]
pub(crate) struct Members {
    expected: Expected,
    members: BTreeMap<(Role, u32), Member>,
    incarnations: u64,
}

impl Members {
    pub(crate) fn new(expected: Expected) -> Self {
        Self { expected, members: BTreeMap::new(), incarnations: 0 }
    }

    /// A process starts as `rank` of `role`. Returns its incarnation, higher than any before, and whether the rank had been
    /// there already: from now on only the newer one is heard.
    ///
    /// # Errors
    /// A user fault for a rank that the job has no place for. (Readers may be more than the job names.)
    pub(crate) fn join(
        &mut self,
        role: Role,
        rank: u32,
        address: Option<String>,
        now: Instant,
    ) -> Result<(u64, bool), Fault> {
        let places = match role {
            Role::Ps => self.expected.ps,
            Role::Trainer => self.expected.trainers,
            Role::Reader => u32::MAX,
        };
        if rank >= places {
            return Err(Fault::user(format!(
                "{role} {rank} wants to join, but the job has {places} of this role, from 0"
            )));
        }
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let before = self.members.insert((role, rank), Member { incarnation, address, heard: now, gone: false });
        Ok((incarnation, before.is_some()))
    }

    /// A sign of life.
    ///
    /// # Errors
    /// A user fault when another process has started as the same rank since: this one must not be tried again. An external one
    /// when none has.
    pub(crate) fn hear(&mut self, role: Role, rank: u32, incarnation: u64, now: Instant) -> Result<(), Fault> {
        match self.members.get_mut(&(role, rank)) {
            Some(member) if member.incarnation == incarnation => {
                member.heard = now;
                member.gone = false;
                Ok(())
            }
            Some(_) => Err(Fault::user(format!(
                "{role} {rank} was started again elsewhere, this process is out: only the newest of a rank works"
            ))),
            None => Err(Fault::external(format!(
                "{role} {rank} is not known to this run: the coordinator was started anew, so the run must be, too"
            ))),
        }
    }

    /// A process ends as it should.
    pub(crate) fn leave(&mut self, role: Role, rank: u32, incarnation: u64) {
        if let Some(member) = self.members.get_mut(&(role, rank))
            && member.incarnation == incarnation
        {
            member.gone = true;
        }
    }

    /// Readers that were not heard of for `silence`, each said once.
    pub(crate) fn lost_readers(&mut self, silence: Duration, now: Instant) -> Vec<u32> {
        let mut lost = Vec::new();
        for ((role, rank), member) in &mut self.members {
            if *role == Role::Reader && !member.gone && now.duration_since(member.heard) > silence {
                member.gone = true;
                lost.push(*rank);
            }
        }
        lost
    }

    /// Where the ranks of `role` are reached, those that have not joined as `None`, with their incarnations.
    pub(crate) fn addresses(&self, role: Role) -> Vec<Option<(u64, String)>> {
        let places = match role {
            Role::Ps => self.expected.ps,
            Role::Trainer => self.expected.trainers,
            Role::Reader => 0,
        };
        let member = |rank| self.members.get(&(role, rank));
        (0..places).map(|rank| member(rank).and_then(|m| Some((m.incarnation, m.address.clone()?)))).collect()
    }

    /// Whoever must be there before the first row is read and is not: every ps and trainer, and one reader if the job has
    /// any.
    pub(crate) fn missing(&self) -> Vec<String> {
        let there = |role, rank| self.members.contains_key(&(role, rank));
        let ranks =
            |role, places: u32| (0..places).filter(move |&rank| !there(role, rank)).map(move |r| format!("{role} {r}"));
        let mut missing: Vec<String> =
            ranks(Role::Ps, self.expected.ps).chain(ranks(Role::Trainer, self.expected.trainers)).collect();
        if self.expected.readers > 0 && !self.members.keys().any(|(role, _)| *role == Role::Reader) {
            missing.push("any reader".into());
        }
        missing
    }

    /// Members by role and rank, with whether they are there and for how long they were not heard of.
    pub(crate) fn list(&self, now: Instant) -> Vec<(Role, u32, bool, Duration)> {
        self.members.iter().map(|((role, rank), m)| (*role, *rank, !m.gone, now.duration_since(m.heard))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected { ps: 2, trainers: 1, readers: 2 };

    #[test]
    fn whoever_is_missing_is_named_and_one_reader_is_enough() {
        let (mut members, now) = (Members::new(EXPECTED), Instant::now());
        assert_eq!(members.missing(), ["ps 0", "ps 1", "trainer 0", "any reader"]);
        members.join(Role::Ps, 1, Some("b:1".into()), now).unwrap();
        members.join(Role::Reader, 7, None, now).unwrap();
        assert_eq!(members.missing(), ["ps 0", "trainer 0"]);
        assert_eq!(members.addresses(Role::Ps), [None, Some((1, "b:1".into()))]);
        let said = members.join(Role::Trainer, 1, None, now).unwrap_err().to_string();
        assert!(said.contains("trainer 1 wants to join, but the job has 1"), "{said}");
    }

    #[test]
    fn the_newest_start_of_a_rank_is_the_one_that_counts() {
        let (mut members, now) = (Members::new(EXPECTED), Instant::now());
        let (old, before) = members.join(Role::Reader, 0, None, now).unwrap();
        assert!(!before);
        let (new, before) = members.join(Role::Reader, 0, None, now).unwrap();
        assert!(before && new > old);
        members.hear(Role::Reader, 0, new, now).unwrap();
        let said = members.hear(Role::Reader, 0, old, now).unwrap_err().to_string();
        assert!(said.contains("started again elsewhere"), "{said}");
        assert!(
            members.hear(Role::Reader, 5, 1, now).unwrap_err().to_string().contains("coordinator was started anew")
        );
    }

    #[test]
    fn silent_readers_are_lost_once_and_come_back() {
        let (mut members, start) = (Members::new(EXPECTED), Instant::now());
        let (incarnation, _) = members.join(Role::Reader, 3, None, start).unwrap();
        members.join(Role::Trainer, 0, None, start).unwrap();
        let silence = Duration::from_secs(5);
        assert!(members.lost_readers(silence, start + silence).is_empty());
        let late = start + silence + Duration::from_secs(1);
        assert_eq!(members.lost_readers(silence, late), [3]);
        assert!(members.lost_readers(silence, late).is_empty());
        members.hear(Role::Reader, 3, incarnation, late).unwrap();
        assert!(members.lost_readers(silence, late + silence).is_empty());
        assert_eq!(members.lost_readers(silence, late + silence * 2), [3]);
    }
}
