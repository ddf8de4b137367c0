//! A trainer that is asked to shut down leaves, and the run goes on without it. A later process of its rank may join again.
//!
//! The first trainer never leaves, and no trainer leaves a run with `train.sync`: see `Job::trainers_may_leave`.
//!
//! ```text
//!  trainer                       coordinator
//!  asked to shut down ────────────────→ "leaving": it may leave, unless the run drains or has ended; else it asks for a drain
//!  takes no more batches
//!  finishes those it has taken
//!  gives back its leases ──────→ they go to other trainers
//!  "left; these batches are     ─→ cuts, the start of an attempt and the end of the run do not wait for it
//!   done in open windows"
//! ```
//!
//! If all processes are asked to shut down, the first trainer drains the run. The order does not matter: a trainer that has left has done
//! its part, a trainer that leaves still stops for the last cut, and a trainer that asks later drains with the others.

use std::time::Instant;

use forebay_actors::Fault;

use super::super::leases::LeaseBook;
use super::super::members::Role;
use super::super::messages::{MemberId, ProcessRequest, RunPhase};
use super::RunState;
use crate::checkpoint::WindowLog;

impl RunState {
    /// A trainer was asked to shut down. Returns whether it leaves, and the run goes on; else the run must drain.
    ///
    /// # Errors
    /// As [`heartbeat`](Self::heartbeat).
    pub(in crate::cluster) fn leaving(&mut self, member: MemberId, now: Instant) -> Result<bool, Fault> {
        self.heartbeat(member, now)?;
        let goes_on = matches!(self.phase, RunPhase::Gathering | RunPhase::Running);
        let leaves = goes_on && self.members.may_leave(member.role, member.rank);
        if leaves {
            self.members.begins_to_leave(member.role, member.rank, member.incarnation);
            tracing::info!("{member} was asked to shut down and leaves: the run goes on");
        }
        Ok(leaves)
    }

    /// A member ends as it should. `done`: what a trainer has done in windows that are not known to be done.
    pub(in crate::cluster) fn leave(
        &mut self,
        member: MemberId,
        done: Vec<WindowLog>,
        now: Instant,
    ) -> Result<(), Fault> {
        self.heartbeat(member, now)?;
        let MemberId { role, rank, incarnation, .. } = member;
        if role == Role::Trainer && !self.members.has_left(role, rank) {
            let first_open = self.leases.as_ref().map_or((0, 0), LeaseBook::first_open);
            self.done_by_left.extend(done);
            self.done_by_left.retain(|log| (log.epoch, log.window) >= first_open);
        }
        self.members.leave(role, rank, incarnation);
        self.end_notices.mark_notified(role, rank);
        if role == self.settings.reader_role {
            self.return_leases_of(rank);
        }
        tracing::info!("{member} left");
        self.begin_if_all_joined(now);
        self.finish_if_done();
        Ok(())
    }

    /// A process was asked to shut down, and ends before it has joined. The end of the run does not wait for it. If it is a trainer that
    /// the run does without, no attempt waits for it either.
    ///
    /// # Errors
    /// A user fault for another job.
    pub(in crate::cluster) fn gone(&mut self, process: &ProcessRequest, now: Instant) -> Result<(), Fault> {
        let &ProcessRequest { role, rank, nonce, .. } = process;
        self.alive(process, now)?;
        if self.members.is_newest(role, rank, nonce) {
            self.end_notices.mark_gone(role, rank);
        }
        if self.members.ends_before_it_joins(role, rank, nonce) {
            self.begin_if_all_joined(now);
        }
        Ok(())
    }

    /// Begins the attempt if it has waited for some time for nothing but trainers that the run can do without, and has heard nothing of
    /// them. These trainers are late, or left before the coordinator was started again, which it cannot know.
    pub(super) fn begin_without_silent_trainers(&mut self, now: Instant) {
        if !self.members.lacks_only_dispensable() {
            self.lacks_only_dispensable = None;
            return;
        }
        let since = *self.lacks_only_dispensable.get_or_insert(now);
        let silence = self.settings.lease_timeout;
        if now.duration_since(since) <= silence {
            return;
        }
        for (role, rank) in self.members.do_without_silent(silence, now) {
            tracing::warn!(
                "nothing was heard of {role} {rank} for {silence:?} (placement.lease_seconds): the run goes on without it, and it may join \
                 later"
            );
            self.end_notices.mark_gone(role, rank);
        }
        self.begin_if_all_joined(now);
    }

    /// Whether a trainer that has left, or has not joined this attempt, would have nothing to do: the run drains, or every row is trained
    /// on.
    pub(super) fn has_no_work_for(&self, role: Role, rank: u32) -> bool {
        matches!(self.phase, RunPhase::Draining | RunPhase::Finished)
            && self.members.may_leave(role, rank)
            && self.members.absent_trainers().contains(&rank)
    }
}

#[cfg(test)]
mod tests;
