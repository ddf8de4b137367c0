//! The processes of a run by role and rank: a state machine over joins, heartbeats and leaves, without a clock and without IO.
//!
//! It knows the valid incarnation and the address of each rank, which members are missing, and which are silent. `members/starts.rs` has
//! those that have not joined.

mod starts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

use self::starts::Starts;

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
struct KnownMember {
    incarnation: u64,
    /// The random number of its start.
    nonce: u64,
    address: Option<String>,
    last_heartbeat: Instant,
    /// It has joined the current attempt.
    joined: bool,
    /// The run counts on it. False once it has left and, for a [`Role::Reader`], while it is lost.
    present: bool,
    /// [`Members::newly_lost`] has returned it, and it has sent no heartbeat since. A trainer that reads may be lost and present.
    lost: bool,
    /// It has left, or will leave when it has finished the batches that it has taken.
    leaving: bool,
}

impl KnownMember {
    /// The process ended as it should. A heartbeat that comes later was sent before that.
    fn has_left(&self) -> bool {
        self.joined && !self.present && !self.lost
    }
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
    /// The run counts on it: it has not left, and is no lost reader.
    pub(crate) present: bool,
    /// The time since its last heartbeat.
    pub(crate) silence: Duration,
}

/// In [`RunStatus::missing`](super::RunStatus::missing): the run waits for any reader.
const ANY_READER: &str = "any reader";

/// The members of one run.
#[derive(Debug)]
pub(crate) struct Members {
    expected: Expected,
    /// The run goes on without trainers that have left, all but the first.
    trainers_may_leave: bool,
    members: BTreeMap<(Role, u32), KnownMember>,
    /// What was heard of the processes of each rank.
    starts: BTreeMap<(Role, u32), Starts>,
    /// The coordinator can hear of processes since then.
    begun: Instant,
    incarnations: u64,
}

impl Members {
    pub(crate) fn new(expected: Expected, now: Instant) -> Self {
        Self {
            expected,
            trainers_may_leave: false,
            members: BTreeMap::new(),
            starts: BTreeMap::new(),
            begun: now,
            incarnations: 0,
        }
    }

    /// Whether the run goes on without trainers that have left, all but the first. Default: false.
    #[must_use]
    pub(crate) fn trainers_may_leave(self, yes: bool) -> Self {
        Self { trainers_may_leave: yes, ..self }
    }

    /// Whether the run goes on if the trainer of this place leaves. False for a ps, and for readers, which have other rules.
    pub(crate) fn may_leave(&self, role: Role, rank: u32) -> bool {
        self.trainers_may_leave && role == Role::Trainer && rank > 0 && rank < self.expected.trainers
    }

    fn places(&self, role: Role) -> u32 {
        match role {
            Role::Ps => self.expected.ps,
            Role::Trainer => self.expected.trainers,
            Role::Reader => u32::MAX,
        }
    }

    /// A process that runs as `rank` of `role` gives a sign of life, whether it has joined or not. A process of this rank that was heard of
    /// earlier cannot take its place, because a request to join may arrive after its sender has died.
    pub(crate) fn note_sign_of_life(&mut self, role: Role, rank: u32, nonce: u64, now: Instant) {
        if rank < self.places(role) {
            self.starts.entry((role, rank)).or_insert_with(|| Starts::new(now)).note_sign_of_life(nonce, now);
        }
    }

    /// Whether a process of this rank was ever heard of.
    pub(crate) fn was_seen(&self, role: Role, rank: u32) -> bool {
        self.starts.contains_key(&(role, rank))
    }

    /// Whether the process of this `nonce` is the newest of its rank that was heard of.
    pub(crate) fn is_newest(&self, role: Role, rank: u32, nonce: u64) -> bool {
        self.starts.get(&(role, rank)).is_some_and(|starts| starts.newest() == Some(nonce))
    }

    /// Whether the process of this `nonce` was heard of after `member`.
    fn is_newer(&self, (role, rank): (Role, u32), nonce: u64, member: &KnownMember) -> bool {
        self.starts.get(&(role, rank)).is_none_or(|starts| starts.is_newer(nonce, member.nonce))
    }

    /// A process starts as `rank` of `role`. A request with the same `nonce` comes from the same process, which did not get
    /// the reply to its first request: it keeps its incarnation.
    ///
    /// # Errors
    /// A user fault for a rank that the job does not have (there may be more readers than the job names), and for a request of
    /// a process whose rank was started again since.
    pub(crate) fn join(
        &mut self,
        role: Role,
        rank: u32,
        address: Option<String>,
        nonce: u64,
        now: Instant,
    ) -> Result<Joined, Fault> {
        check_rank(role, rank, self.places(role))?;
        self.note_sign_of_life(role, rank, nonce, now);
        if let Some(before) = self.members.get(&(role, rank))
            && before.nonce != nonce
            && !self.is_newer((role, rank), nonce, before)
        {
            return Err(started_again(role, rank));
        }
        if let Some(before) = self.members.get_mut(&(role, rank))
            && before.nonce == nonce
            && before.joined
        {
            before.last_heartbeat = now;
            return Ok(Joined { incarnation: before.incarnation, repeated: true });
        }
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let member = KnownMember {
            incarnation,
            nonce,
            address,
            last_heartbeat: now,
            joined: true,
            present: true,
            lost: false,
            leaving: false,
        };
        self.members.insert((role, rank), member);
        Ok(Joined { incarnation, repeated: false })
    }

    /// Whether a request with this `nonce` comes from a newer process than the one of this rank that has joined the attempt.
    pub(crate) fn is_restart(&self, role: Role, rank: u32, nonce: u64) -> bool {
        let place = (role, rank);
        let replaces =
            |member: &KnownMember| member.joined && member.nonce != nonce && self.is_newer(place, nonce, member);
        self.members.get(&place).is_some_and(replaces)
    }

    /// A new attempt begins: all members must join again. A process that was replaced still may not join.
    pub(crate) fn begin_attempt(&mut self) {
        for (place, member) in &mut self.members {
            if let Some(starts) = self.starts.get_mut(place).filter(|_| member.joined) {
                starts.note_earlier_sign_of_life(member.nonce, member.last_heartbeat);
            }
            (member.joined, member.present, member.leaving) = (false, false, false);
        }
    }

    /// The coordinator itself stood still for `gap`, until `now`, and could hear from no process.
    pub(crate) fn coordinator_stood_still(&mut self, gap: Duration, now: Instant) {
        let later = |time: Instant| (time + gap).min(now);
        self.begun = later(self.begun);
        self.members.values_mut().for_each(|member| member.last_heartbeat = later(member.last_heartbeat));
        self.starts.values_mut().for_each(|starts| starts.heard = later(starts.heard));
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
                if !member.has_left() {
                    (member.present, member.lost) = (true, false);
                }
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
            (member.present, member.lost) = (false, false);
            if let Some(starts) = self.starts.get_mut(&(role, rank)) {
                starts.has_left(member.nonce);
            }
        }
    }

    /// A member will leave. Older incarnations are ignored.
    pub(crate) fn begins_to_leave(&mut self, role: Role, rank: u32, incarnation: u64) {
        if let Some(member) = self.members.get_mut(&(role, rank))
            && member.incarnation == incarnation
        {
            member.leaving = true;
        }
    }

    /// Whether a member of this attempt will leave, has not left, and gave a sign of life within `silence`.
    pub(crate) fn is_leaving(&self, role: Role, rank: u32, silence: Duration, now: Instant) -> bool {
        self.members.get(&(role, rank)).is_some_and(|member| {
            let leaves = member.joined && member.leaving && !member.has_left();
            leaves && now.duration_since(member.last_heartbeat) <= silence
        })
    }

    /// A process ends before it has joined the attempt. Returns whether the run does without it: another process of its place may have been
    /// heard of later, or the run cannot go on without this place.
    pub(crate) fn ends_before_it_joins(&mut self, role: Role, rank: u32, nonce: u64) -> bool {
        let may_leave = self.may_leave(role, rank);
        let Some(starts) = self.starts.get_mut(&(role, rank)).filter(|_| may_leave) else { return false };
        starts.has_left(nonce);
        starts.left
    }

    /// Whether members are missing, and the run can do without all of these.
    pub(crate) fn lacks_only_dispensable(&self) -> bool {
        let mut missing = self.missing_ps_and_trainers().peekable();
        missing.peek().is_some() && !self.lacks_a_reader() && missing.all(|(role, rank)| self.may_leave(role, rank))
    }

    /// Stops waiting for the missing trainers that the run can do without and that gave no sign of life for `silence`, until they give one.
    /// Returns them.
    pub(crate) fn do_without_silent(&mut self, silence: Duration, now: Instant) -> Vec<(Role, u32)> {
        let is_silent =
            |&(role, rank): &(Role, u32)| self.may_leave(role, rank) && self.silent_for(&(role, rank), now) > silence;
        let silent: Vec<_> = self.missing_ps_and_trainers().filter(is_silent).collect();
        for &place in &silent {
            self.starts.entry(place).or_insert_with(|| Starts::new(self.begun)).awaited = false;
        }
        silent
    }

    /// The processes that have left and were not started again, in this attempt or an earlier one, and that the run does without.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (Role, u32)> + '_ {
        let gone = |((role, rank), starts): &(&(Role, u32), &Starts)| starts.left && self.may_leave(*role, *rank);
        self.starts.iter().filter(gone).map(|(&place, _)| place)
    }

    /// The ranks of the trainers that take no part in this attempt: they have left, or have not joined it.
    pub(crate) fn absent_trainers(&self) -> BTreeSet<u32> {
        let takes_part =
            |rank| self.members.get(&(Role::Trainer, rank)).is_some_and(|member| member.joined && !member.has_left());
        (0..self.expected.trainers).filter(|&rank| !takes_part(rank)).collect()
    }

    /// Processes of `role`, which read, without a heartbeat for `silence`. Each is returned once, and again if it comes back and
    /// is lost again.
    pub(crate) fn newly_lost(&mut self, role: Role, silence: Duration, now: Instant) -> Vec<u32> {
        let mut lost = Vec::new();
        for ((_, rank), member) in self.members.range_mut((role, 0)..=(role, u32::MAX)) {
            let silent = now.duration_since(member.last_heartbeat) > silence;
            if member.joined && member.present && !member.lost && silent {
                member.lost = true;
                // The run goes on without a reader, but waits for a trainer.
                member.present = role != Role::Reader;
                lost.push(*rank);
            }
        }
        lost
    }

    /// (incarnation, address) of each rank of `role`; `None` for a rank that has not joined, and for a trainer that the run goes on
    /// without. The address of a trainer that reads by itself is empty: no process connects to it.
    pub(crate) fn addresses(&self, role: Role) -> Vec<Option<(u64, String)>> {
        let places = match role {
            Role::Ps => self.expected.ps,
            Role::Trainer => self.expected.trainers,
            Role::Reader => 0,
        };
        let is_there = |rank, member: &KnownMember| member.joined && !(member.has_left() && self.may_leave(role, rank));
        let member = |rank| self.members.get(&(role, rank)).filter(|member| is_there(rank, member));
        let address = |member: &KnownMember| (member.incarnation, member.address.clone().unwrap_or_default());
        (0..places).map(|rank| member(rank).map(address)).collect()
    }

    /// The number of readers that have joined, and have neither left nor been lost.
    pub(crate) fn readers(&self) -> usize {
        self.present().filter(|(role, _)| *role == Role::Reader).count()
    }

    /// Whether every ps and trainer has joined.
    pub(crate) fn has_ps_and_trainers(&self) -> bool {
        self.missing_ps_and_trainers().next().is_none()
    }

    /// The processes that gave no sign of life for `silence`: members, processes that have not joined the attempt, and processes of the job
    /// that the coordinator has never heard of; but none that has left.
    pub(crate) fn silent(&self, silence: Duration, now: Instant) -> BTreeSet<(Role, u32)> {
        let is_silent = |place: &(Role, u32)| {
            let starts = self.starts.get(place);
            // A member that was started again has not joined yet.
            let is_newest = |member: &&KnownMember| starts.is_none_or(|starts| starts.newest() == Some(member.nonce));
            let may_be = match self.members.get(place).filter(|member| member.joined).filter(is_newest) {
                Some(member) => (member.present || member.lost) && now.duration_since(member.last_heartbeat) > silence,
                None => starts.is_none_or(|starts| !starts.left),
            };
            may_be && self.silent_for(place, now) > silence
        };
        let Expected { ps, trainers, readers } = self.expected;
        let all = [(Role::Ps, ps), (Role::Trainer, trainers), (Role::Reader, readers)];
        let expected = all.into_iter().flat_map(|(role, count)| (0..count).map(move |rank| (role, rank)));
        expected.chain(self.starts.keys().copied()).filter(is_silent).collect()
    }

    /// The time since a process of this place gave a sign of life.
    fn silent_for(&self, place: &(Role, u32), now: Instant) -> Duration {
        now.duration_since(self.starts.get(place).map_or(self.begun, |starts| starts.heard))
    }

    /// The [missing](Self::missing) members that sent nothing for `silence`. The other missing members may be loading.
    pub(crate) fn missing_and_silent(&self, silence: Duration, now: Instant) -> Vec<String> {
        let silent = |place: &(Role, u32)| self.silent_for(place, now) > silence;
        let mut missing: Vec<String> = self.missing_ps_and_trainers().filter(silent).map(name).collect();
        if self.lacks_a_reader() && self.starts.keys().filter(|(role, _)| *role == Role::Reader).all(silent) {
            missing.push(ANY_READER.into());
        }
        missing
    }

    /// The names of the members that have not joined and must join before the first row is read: every ps and trainer, and one reader if
    /// the job has any.
    pub(crate) fn missing(&self) -> Vec<String> {
        let mut missing: Vec<String> = self.missing_ps_and_trainers().map(name).collect();
        if self.lacks_a_reader() {
            missing.push(ANY_READER.into());
        }
        missing
    }

    fn lacks_a_reader(&self) -> bool {
        let reads = |((role, _), member): (&(Role, u32), &KnownMember)| *role == Role::Reader && member.joined;
        self.expected.readers > 0 && !self.members.iter().any(reads)
    }

    fn missing_ps_and_trainers(&self) -> impl Iterator<Item = (Role, u32)> + '_ {
        let Expected { ps, trainers, .. } = self.expected;
        let places = (0..ps).map(|rank| (Role::Ps, rank)).chain((0..trainers).map(|rank| (Role::Trainer, rank)));
        places.filter(move |&(role, rank)| self.is_missing(role, rank))
    }

    fn is_missing(&self, role: Role, rank: u32) -> bool {
        let place = (role, rank);
        let has_joined = self.members.get(&place).is_some_and(|member| member.joined);
        let is_awaited = self.starts.get(&place).is_none_or(|starts| starts.awaited && !starts.left);
        !has_joined && (is_awaited || !self.may_leave(role, rank))
    }

    /// Whether a member of this attempt ended as it should.
    pub(crate) fn has_left(&self, role: Role, rank: u32) -> bool {
        self.members.get(&(role, rank)).is_some_and(KnownMember::has_left)
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
            silence: now.duration_since(member.last_heartbeat),
        })
    }
}

/// A process as users name it.
pub(crate) fn name((role, rank): (Role, u32)) -> String {
    format!("{role} {rank}")
}

fn started_again(role: Role, rank: u32) -> Fault {
    Fault::user(format!(
        "{role} {rank} was started again elsewhere: only the newest process of a rank takes part, so this one ends"
    ))
}

/// Fails if a job with `places` processes of a role has no process of this rank.
///
/// # Errors
/// A user fault.
pub(crate) fn check_rank(role: Role, rank: u32, places: u32) -> Result<(), Fault> {
    let has = match places {
        0 => "no process of this role".to_owned(),
        _ if rank < places => return Ok(()),
        _ => format!("{places} of this role, numbered from 0"),
    };
    Err(Fault::user(format!("{role} {rank} wants to join, but the job has {has}")))
}

#[cfg(test)]
mod tests;
