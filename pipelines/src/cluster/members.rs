//! The processes of a run by role and rank: a state machine over joins, heartbeats and leaves, without a clock and without IO.
//!
//! It knows the valid incarnation and the address of each rank, which members are missing, and which are silent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Holds shards of the tables.
    Ps,
    /// Trains.
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

/// The number of processes of each role that the job names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) ps: u32,
    pub(crate) trainers: u32,
    pub(crate) readers: u32,
}

#[derive(Debug)]
struct Member {
    incarnation: u64,
    /// The random number of its start.
    nonce: u64,
    /// The random numbers of earlier starts with this rank.
    earlier: Vec<u64>,
    address: Option<String>,
    last_heartbeat: Instant,
    /// It has joined the current attempt.
    joined: bool,
    /// It has not left, and if it is a reader, it sent a heartbeat recently.
    present: bool,
    /// It reads and sent no heartbeat recently: it has lost its leases.
    lost: bool,
}

/// What [`Members::join`] returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    /// Higher than any before.
    pub(crate) incarnation: u64,
    /// This process has joined already: its request was sent again.
    pub(crate) repeated: bool,
}

/// One row of [`Members::list`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberState {
    pub(crate) role: Role,
    pub(crate) rank: u32,
    /// It has not left, and if it is a reader, it sent a heartbeat recently.
    pub(crate) present: bool,
    /// It reads, and its leases went to others.
    pub(crate) lost: bool,
    /// The time since its last heartbeat.
    pub(crate) silence: Duration,
}

/// In [`RunStatus::missing`](super::RunStatus::missing): the run waits for a reader, whichever.
pub const ANY_READER: &str = "any reader";

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

    /// A process starts as `rank` of `role`. A request with the same `nonce` comes from the same process, which did not get
    /// the reply to its first request: it keeps its incarnation.
    ///
    /// # Errors
    /// A user fault for a rank that the job does not have (there may be more readers than the job names), and for a request of
    /// a process that was started again since.
    pub(crate) fn join(
        &mut self,
        role: Role,
        rank: u32,
        address: Option<String>,
        nonce: u64,
        now: Instant,
    ) -> Result<Joined, Fault> {
        let places = match role {
            Role::Ps => self.expected.ps,
            Role::Trainer => self.expected.trainers,
            Role::Reader => u32::MAX,
        };
        if rank >= places {
            return Err(Fault::user(format!(
                "{role} {rank} wants to join, but the job has {places} of this role, numbered from 0"
            )));
        }
        let mut earlier = Vec::new();
        let before = self.members.get_mut(&(role, rank));
        if let Some(before) = before {
            if before.nonce == nonce && before.joined {
                before.last_heartbeat = now;
                return Ok(Joined { incarnation: before.incarnation, repeated: true });
            }
            if before.earlier.contains(&nonce) {
                return Err(started_again(role, rank));
            }
            earlier = std::mem::take(&mut before.earlier);
            if before.nonce != nonce {
                earlier.push(before.nonce);
            }
        }
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let member = Member {
            incarnation,
            nonce,
            earlier,
            address,
            last_heartbeat: now,
            joined: true,
            present: true,
            lost: false,
        };
        self.members.insert((role, rank), member);
        Ok(Joined { incarnation, repeated: false })
    }

    /// Whether a request with this `nonce` comes from another process than the one of this rank that has joined the attempt.
    pub(crate) fn is_restart(&self, role: Role, rank: u32, nonce: u64) -> bool {
        let replaced = |member: &Member| member.joined && member.nonce != nonce && !member.earlier.contains(&nonce);
        self.members.get(&(role, rank)).is_some_and(replaced)
    }

    /// A new attempt begins: all members must join again. A process that was replaced may still not.
    pub(crate) fn begin_attempt(&mut self) {
        for member in self.members.values_mut() {
            (member.joined, member.present) = (false, false);
        }
    }

    /// A member is alive.
    ///
    /// # Errors
    /// A user fault if another process has started with the same rank since: this process must end. An external fault if no
    /// process of this rank has joined.
    pub(crate) fn heartbeat(&mut self, role: Role, rank: u32, incarnation: u64, now: Instant) -> Result<(), Fault> {
        match self.members.get_mut(&(role, rank)) {
            Some(member) if member.incarnation == incarnation => {
                member.last_heartbeat = now;
                (member.present, member.lost) = (true, false);
                Ok(())
            }
            Some(_) => Err(started_again(role, rank)),
            None => Err(Fault::external(format!(
                "{role} {rank} is unknown to the coordinator, which was restarted: start the run again"
            ))),
        }
    }

    /// A member ends as it should. Older incarnations are ignored.
    pub(crate) fn leave(&mut self, role: Role, rank: u32, incarnation: u64) {
        if let Some(member) = self.members.get_mut(&(role, rank))
            && member.incarnation == incarnation
        {
            member.present = false;
        }
    }

    /// Processes of `role`, which read, without a heartbeat for `silence`. Each is returned once, and again if it comes back and
    /// is lost again.
    pub(crate) fn lost_readers(&mut self, role: Role, silence: Duration, now: Instant) -> Vec<u32> {
        let mut lost = Vec::new();
        for ((_, rank), member) in self.members.range_mut((role, 0)..=(role, u32::MAX)) {
            let silent = now.duration_since(member.last_heartbeat) > silence;
            if member.joined && member.present && !member.lost && silent {
                member.lost = true;
                // The run goes on without a reader, but not for long without a trainer.
                member.present = role != Role::Reader;
                lost.push(*rank);
            }
        }
        lost
    }

    /// (incarnation, address) of each rank of `role`; `None` for a rank that has not joined.
    pub(crate) fn addresses(&self, role: Role) -> Vec<Option<(u64, String)>> {
        let places = match role {
            Role::Ps => self.expected.ps,
            Role::Trainer => self.expected.trainers,
            Role::Reader => 0,
        };
        let member = |rank| self.members.get(&(role, rank)).filter(|member| member.joined);
        (0..places).map(|rank| member(rank).and_then(|m| Some((m.incarnation, m.address.clone()?)))).collect()
    }

    /// Names of members that must join before the first row is read: every ps and trainer, and one reader if the job has any.
    pub(crate) fn missing(&self) -> Vec<String> {
        let there = |role, rank| self.members.get(&(role, rank)).is_some_and(|member| member.joined);
        let ranks =
            |role, places: u32| (0..places).filter(move |&rank| !there(role, rank)).map(move |r| format!("{role} {r}"));
        let mut missing: Vec<String> =
            ranks(Role::Ps, self.expected.ps).chain(ranks(Role::Trainer, self.expected.trainers)).collect();
        let reads = |((role, _), member): (&(Role, u32), &Member)| *role == Role::Reader && member.joined;
        if self.expected.readers > 0 && !self.members.iter().any(reads) {
            missing.push(ANY_READER.into());
        }
        missing
    }

    /// The members that joined this attempt and have not left.
    pub(crate) fn present(&self) -> impl Iterator<Item = (Role, u32)> + '_ {
        self.members.iter().filter(|(_, member)| member.joined && member.present).map(|(&place, _)| place)
    }

    /// All members that joined this attempt, by role and rank.
    pub(crate) fn list(&self, now: Instant) -> impl Iterator<Item = MemberState> + '_ {
        self.members.iter().filter(|(_, member)| member.joined).map(move |(&(role, rank), member)| MemberState {
            role,
            rank,
            present: member.present,
            lost: member.lost,
            silence: now.duration_since(member.last_heartbeat),
        })
    }
}

fn started_again(role: Role, rank: u32) -> Fault {
    Fault::user(format!(
        "{role} {rank} was started again elsewhere: only the newest process of a rank takes part, so this one ends"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected { ps: 2, trainers: 1, readers: 2 };

    #[test]
    fn missing_members_are_named_and_one_reader_is_enough() {
        let (mut members, now) = (Members::new(EXPECTED), Instant::now());
        assert_eq!(members.missing(), ["ps 0", "ps 1", "trainer 0", "any reader"]);
        members.join(Role::Ps, 1, Some("b:1".into()), 1, now).unwrap();
        members.join(Role::Reader, 7, None, 2, now).unwrap();
        assert_eq!(members.missing(), ["ps 0", "trainer 0"]);
        assert_eq!(members.addresses(Role::Ps), [None, Some((1, "b:1".into()))]);
        let said = members.join(Role::Trainer, 1, None, 3, now).unwrap_err().to_string();
        assert!(said.contains("trainer 1 wants to join, but the job has 1"), "{said}");
    }

    #[test]
    fn only_the_newest_process_of_a_rank_is_valid() {
        let (mut members, now) = (Members::new(EXPECTED), Instant::now());
        assert!(!members.is_restart(Role::Reader, 0, 1));
        let Joined { incarnation: old, .. } = members.join(Role::Reader, 0, None, 1, now).unwrap();
        assert!(!members.is_restart(Role::Reader, 0, 1) && members.is_restart(Role::Reader, 0, 2));
        let Joined { incarnation: new, .. } = members.join(Role::Reader, 0, None, 2, now).unwrap();
        assert!(new > old);
        members.heartbeat(Role::Reader, 0, new, now).unwrap();
        let said = members.heartbeat(Role::Reader, 0, old, now).unwrap_err().to_string();
        assert!(said.contains("started again elsewhere"), "{said}");
        assert!(members.heartbeat(Role::Reader, 5, 1, now).unwrap_err().to_string().contains("which was restarted"));
    }

    #[test]
    fn a_join_that_is_sent_again_is_the_same_process() {
        let (mut members, now) = (Members::new(EXPECTED), Instant::now());
        let mut join = |nonce| members.join(Role::Trainer, 0, Some("b:1".into()), nonce, now);
        let first = join(7).unwrap();
        let again = join(7).unwrap();
        assert_eq!((again.incarnation, again.repeated), (first.incarnation, true));
        let next = join(8).unwrap();
        assert!(next.incarnation > first.incarnation && !next.repeated);
        let said = join(7).unwrap_err().to_string();
        assert!(said.contains("started again elsewhere"), "a late request of the first process: {said}");
        assert_eq!(join(8).unwrap().incarnation, next.incarnation);
    }

    #[test]
    fn in_a_new_attempt_all_join_again_but_not_those_that_were_replaced() {
        let (mut members, now) = (Members::new(EXPECTED), Instant::now());
        let join = |members: &mut Members, rank, nonce| members.join(Role::Ps, rank, Some("b:1".into()), nonce, now);
        join(&mut members, 0, 1).unwrap();
        join(&mut members, 1, 2).unwrap();
        let Joined { incarnation, .. } = join(&mut members, 1, 3).unwrap();
        members.begin_attempt();
        assert_eq!(members.missing(), ["ps 0", "ps 1", "trainer 0", "any reader"]);
        assert_eq!(members.addresses(Role::Ps), [None, None]);
        assert_eq!(members.list(now).count(), 0);
        assert!(join(&mut members, 1, 2).unwrap_err().to_string().contains("started again elsewhere"));
        let again = join(&mut members, 1, 3).unwrap();
        assert!(!again.repeated && again.incarnation > incarnation);
        assert!(!members.is_restart(Role::Ps, 0, 4), "its predecessor took no part in this attempt");
    }

    #[test]
    fn silent_readers_are_lost_once_and_come_back() {
        let (mut members, start) = (Members::new(EXPECTED), Instant::now());
        let Joined { incarnation, .. } = members.join(Role::Reader, 3, None, 1, start).unwrap();
        members.join(Role::Trainer, 0, None, 2, start).unwrap();
        let silence = Duration::from_secs(5);
        assert!(members.lost_readers(Role::Reader, silence, start + silence).is_empty());
        let late = start + silence + Duration::from_secs(1);
        assert_eq!(members.lost_readers(Role::Reader, silence, late), [3]);
        assert!(members.lost_readers(Role::Reader, silence, late).is_empty());
        members.heartbeat(Role::Reader, 3, incarnation, late).unwrap();
        assert!(members.lost_readers(Role::Reader, silence, late + silence).is_empty());
        assert_eq!(members.lost_readers(Role::Reader, silence, late + silence * 2), [3]);
    }
}
