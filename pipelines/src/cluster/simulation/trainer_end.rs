//! The end of a trainer's work, and the answers to its requests.

use forebay_batches::BatchId;

use super::super::members::Role;
use super::super::messages::{MemberId, RunPhase, RunStatus};
use super::early_stop::check_stopped;
use super::network::{Answer, Contents, Pid, Request};
use super::rows::check_rows;
use super::trainer::{Ending, Looked, SimTrainer};
use super::world::World;

/// As in `stages/rounds_end.rs`.
const LAST_SHARES: u64 = 5000;

impl SimTrainer {
    /// As the stages `push` and `lookup` when the rest of a round cannot come.
    fn give_up_round(&mut self) {
        std::mem::take(&mut self.pushes).into_iter().for_each(|push| self.applied(push.looked));
        self.computing.extend(self.pulling.take().map(|pulling| pulling.looked));
    }

    /// A push has ended: with it a batch is done, unless an exact order has kept it.
    pub(super) fn applied(&mut self, looked: Option<Looked>) {
        if let Some(looked) = looked {
            self.done(looked.header.id, looked.header.row);
            self.leave();
        }
    }

    /// The end of the pipeline and of the run. A barrier passes all stages before the end does.
    pub(super) fn end(
        &mut self,
        world: &mut World,
        pid: Pid,
        member: MemberId,
        status: &RunStatus,
    ) -> Result<(), String> {
        if self.pushes.is_empty() || self.round.is_none() || !status.lacks_rows_in_the_end() {
            self.gives_up_at = None;
        } else if *self.gives_up_at.get_or_insert(world.now + LAST_SHARES) <= world.now {
            self.rounds_are_over = true;
            self.give_up_round();
        }
        let idle = self.source_ended && !self.barrier && self.at_look_up.is_none() && self.is_quiet();
        if !idle {
            return Ok(());
        }
        if let Some(due) = self.exact.as_ref().and_then(|exact| exact.next_of_the_rest()) {
            self.push_due(world, pid, member, due);
            return Ok(());
        }
        if let (Ending::No, 0, RunPhase::Finished) = (&self.ending, self.rank, &status.phase) {
            let calls = self.ask_all_ps(world, pid, &Request::Contents(member.attempt));
            self.ending = Ending::Reads(calls, Vec::new());
        }
        if let Ending::Reads(calls, contents) = &self.ending
            && calls.is_empty()
        {
            check_model(world, status, contents)?;
            self.ending = Ending::Over;
            world.call(pid, (Role::Ps, 0), Request::Over(member));
        }
        Ok(())
    }

    pub(super) fn answered(&mut self, world: &mut World, pid: Pid, call: u64, body: Answer) -> Result<(), String> {
        if let Answer::Refused(why) = &body
            && !why.contains("fenced")
        {
            return Err(format!("trainer {} was refused: {why}", self.rank));
        }
        if self.source.as_mut().is_some_and(|source| source.answered(world.now, call, &body)) {
            return Ok(());
        }
        if let (Some(ahead), Answer::Rows(rows)) = (&mut self.ahead, &body)
            && ahead.pulled(call, rows)
        {
            return Ok(());
        }
        if let Some(pulling) = self.pulling.as_mut().filter(|pulling| pulling.calls.contains(&call)) {
            pulling.calls.retain(|open| *open != call);
            let (id, after, in_step) = (pulling.looked.header.id, pulling.after, world.job.in_step() as u64);
            match body {
                Answer::Sees(batches) if batches == after * in_step => {}
                Answer::Sees(batches) => {
                    return Err(format!("{id} sees {batches} batches, expected {after} steps of {in_step}"));
                }
                // The process ends soon: see below.
                _ => self.pulling = None,
            }
            return Ok(());
        }
        if let Some(at) = self.pushes.iter().position(|push| push.calls.contains(&call)) {
            self.pushes[at].calls.retain(|open| *open != call);
            if let Answer::Refused(_) = body {
                // A newer process of this rank has pushed. The stage `push` fails, so the batch is not done, and the process ends soon.
                self.pushes.remove(at);
            } else if self.pushes[at].calls.is_empty() {
                let looked = self.pushes.remove(at).looked;
                self.applied(looked);
            }
            return Ok(());
        }
        if let Ending::Reads(calls, contents) = &mut self.ending
            && let Some(at) = calls.iter().position(|open| *open == call)
        {
            calls.remove(at);
            if let Answer::Contents(one) = body {
                contents.push(one);
            }
            return Ok(());
        }
        if self.drained_is_heard(world, pid, call, &body) {
            return Ok(());
        }
        self.cut_answered(world, pid, call, body)
    }
}

/// The model that is saved: the gradients of each batch are in it once. The model of a drained run has the batches of finished windows.
fn check_model(world: &World, status: &RunStatus, contents: &[Contents]) -> Result<(), String> {
    if status.stopped_early {
        return check_stopped(world, status, contents);
    }
    let whole = status.windows_total > 0 && status.windows_done == status.windows_total;
    if !whole && world.told_at.is_none() {
        return Err(format!("it ends after {} of {} windows", status.windows_done, status.windows_total));
    }
    let data = world.data();
    let (rows, counts) = (data.rows * u64::from(data.epochs), status.counts);
    if whole && counts.trained + counts.rejected != rows {
        return Err(format!("the books have {counts:?} of {rows} rows"));
    }
    let (all, open) = (world.all_pushed(), status.first_open);
    for contents in contents {
        let done = |id: &&BatchId| whole || (id.epoch, id.window) < open;
        if let Some(missing) = all.iter().filter(done).find(|id| contents.applied.get(id) != Some(&1)) {
            return Err(format!("{missing} was applied {:?} times in the end", contents.applied.get(missing)));
        }
        if let Some((more, times)) = contents.applied.iter().find(|(id, times)| **times != 1 || !all.contains(id)) {
            return Err(format!("{more} was applied {times} times"));
        }
    }
    check_rows(contents)
}
