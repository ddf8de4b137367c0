//! The checkpoints of a trainer: it follows the orders of a cut and leads it if it is the first, or makes it alone. The gate, the log
//! and the coordinator's part are the real ones.

use std::collections::btree_map::Entry;

use forebay_batches::BatchId;
use futures::FutureExt;

use super::super::cuts::{CutOrder, CutReport, CutRequest, LeadCutRequest, LeadReply, LeadStep};
use super::super::members::Role;
use super::super::messages::{MemberId, RunPhase, RunStatus};
use super::super::ps_snapshots::SnapshotRequest;
use super::network::{Answer, Contents, Pid, Request, SnapshotStep, StoredCheckpoint};
use super::trainer::SimTrainer;
use super::world::World;
use crate::checkpoint::TrainedBatches;
use crate::model_folder::FileEntry;

/// As in `checkpointer/checkpoint_thread.rs`.
const LAST_TRIES: usize = 3;

type Kept = Vec<Vec<(BatchId, u64)>>;

#[derive(Default)]
pub(super) struct SimCuts {
    follows: CutOrder,
    report: Option<CutReport>,
    stopped_for: Option<u64>,
    asking: Option<u64>,
    ask_at: u64,
    lead: Lead,
    /// How often the last checkpoint was given up.
    last_tries: usize,
}

/// What the trainer that makes checkpoints does.
#[derive(Default)]
enum Lead {
    #[default]
    Idle,
    WaitsUntil(u64),
    /// One trainer: all look-ups must be applied.
    Barrier(Plan),
    /// Several trainers must stop.
    Stopping(Plan, u64),
    Beginning(Plan, Vec<u64>, TrainedBatches, Kept),
    GoesOn(Plan, u64, TrainedBatches, Kept),
    /// By rank of the ps: the call, and what was written.
    Writing(Plan, Vec<(u64, Option<Contents>)>, TrainedBatches, Kept),
    /// The manifest is written.
    Keeping(Plan, Vec<u64>),
    /// The store takes no last checkpoint: the run ends as one without checkpoints.
    GivenUp,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    number: u64,
    try_id: u64,
    /// The run ends with it.
    last: bool,
}

impl SimCuts {
    pub(super) fn describe(&self) -> String {
        let lead = match &self.lead {
            Lead::Idle => "idle",
            Lead::WaitsUntil(_) => "waits",
            Lead::Barrier(_) => "barrier",
            Lead::Stopping(..) => "stopping",
            Lead::Beginning(..) => "beginning",
            Lead::GoesOn(..) => "goes on",
            Lead::Writing(..) => "writing",
            Lead::Keeping(..) => "keeping",
            Lead::GivenUp => "given up",
        };
        format!("follows {:?}, lead {lead}", self.follows)
    }
}

impl SimTrainer {
    /// As `follow_orders` in `checkpointer/cut_client.rs`.
    pub(super) fn follow_cuts(&mut self, world: &mut World, pid: Pid, member: MemberId) -> Result<(), String> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let cuts = &mut self.cuts;
        if let CutOrder::Stop { cut, checkpoint, .. } = cuts.follows
            && cuts.stopped_for != Some(cut)
            && shared.gate.until_quiet().now_or_never().is_some()
        {
            cuts.stopped_for = Some(cut);
            let kept = self.exact.as_ref().map(|exact| {
                let path = format!("{checkpoint}-{cut}-{}-{}", self.rank, member.incarnation);
                let kept = exact.kept().iter().map(|batch| (batch.id, batch.step)).collect();
                world.kept_files.insert(path.clone(), kept);
                FileEntry { path, bytes: 0, xxh3: String::new(), rows: None, absent: None, group: None, cells: None }
            });
            cuts.report = Some(CutReport::Stopped { cut, done: shared.log().windows(), kept });
            (cuts.asking, cuts.ask_at) = (None, 0);
        }
        if cuts.asking.is_none() && cuts.ask_at <= world.now {
            let request = CutRequest { member, follows: cuts.follows, report: cuts.report.take() };
            cuts.asking = Some(world.call(pid, (Role::Ps, 0), Request::Cut(Box::new(request))));
        }
        Ok(())
    }

    fn ordered_to(&mut self, order: CutOrder) {
        let Some(shared) = &self.shared else { return };
        if order == self.cuts.follows {
            return;
        }
        match order {
            CutOrder::GoOn => shared.gate.open(),
            CutOrder::Hold { cut } => {
                self.cuts.report = Some(CutReport::Held { cut, looked_up: shared.gate.close() });
            }
            CutOrder::Stop { after: None, .. } => drop(shared.gate.close()),
            CutOrder::Stop { after: Some(most), .. } => shared.gate.close_after(most),
        }
        self.cuts.follows = order;
        self.cuts.ask_at = 0;
    }

    fn lead(&self, world: &mut World, pid: Pid, member: MemberId, plan: Plan, step: LeadStep) -> u64 {
        let request = LeadCutRequest { member, cut: plan.try_id, checkpoint: plan.number, step };
        world.call(pid, (Role::Ps, 0), Request::LeadCut(request))
    }

    /// As the thread `checkpoint` of the first trainer.
    pub(super) fn lead_cuts(
        &mut self,
        world: &mut World,
        pid: Pid,
        member: MemberId,
        status: &RunStatus,
    ) -> Result<(), String> {
        if self.rank != 0 || world.job.checkpoint.to.is_none() {
            return Ok(());
        }
        let last = status.phase == RunPhase::Draining || world.processes[pid].told;
        let runs = matches!(status.phase, RunPhase::Running | RunPhase::Draining)
            && status.data.is_some()
            && !self.source_ended;
        match &self.cuts.lead {
            Lead::Idle => self.cuts.lead = Lead::WaitsUntil(world.now + 100 + world.random.below(1500)),
            Lead::WaitsUntil(time) if (*time <= world.now || last) && runs => {
                let number = world.store.last_key_value().map_or(1, |(number, _)| number + 1);
                let plan = Plan { number, try_id: world.random.next_u64(), last };
                if self.shared.is_some() {
                    let call = self.lead(world, pid, member, plan, LeadStep::Stop);
                    self.cuts.lead = Lead::Stopping(plan, call);
                } else {
                    self.barrier = true;
                    self.cuts.lead = Lead::Barrier(plan);
                }
            }
            Lead::Barrier(plan) if self.is_quiet() => {
                let kept = self.exact.iter().map(|exact| exact.kept());
                let kept = kept.map(|kept| kept.iter().map(|batch| (batch.id, batch.step)).collect()).collect();
                let plan = *plan;
                let calls = self.ask_snapshots(world, pid, member, plan, SnapshotStep::Begin);
                self.cuts.lead = Lead::Beginning(plan, calls, self.position.clone(), kept);
            }
            // The run ends: the cut is dropped.
            Lead::Stopping(..) | Lead::GoesOn(..) if !runs => self.cuts.lead = Lead::WaitsUntil(u64::MAX),
            _ => {}
        }
        Ok(())
    }

    fn write(
        &self,
        world: &mut World,
        pid: Pid,
        member: MemberId,
        plan: Plan,
        batches: TrainedBatches,
        kept: Kept,
    ) -> Lead {
        let calls = self.ask_snapshots(world, pid, member, plan, SnapshotStep::Written);
        Lead::Writing(plan, calls.into_iter().map(|call| (call, None)).collect(), batches, kept)
    }

    fn ask_snapshots(&self, world: &mut World, pid: Pid, member: MemberId, plan: Plan, step: SnapshotStep) -> Vec<u64> {
        let request = SnapshotRequest { number: plan.number, try_id: plan.try_id, full: true };
        self.ask_all_ps(world, pid, &Request::Snapshot(member.attempt, step, request))
    }

    pub(super) fn cut_answered(&mut self, world: &mut World, pid: Pid, call: u64, body: Answer) -> Result<(), String> {
        let Some(member) = self.member else { return Ok(()) };
        match body {
            Answer::Cut(order) => {
                if self.cuts.asking == Some(call) {
                    (self.cuts.asking, self.cuts.ask_at) = (None, world.now + 40);
                    self.ordered_to(order);
                }
                return Ok(());
            }
            // As the client, which waits for the status that says so.
            Answer::Lead(LeadReply::RunEnds) => return Ok(()),
            Answer::Lead(LeadReply::GivenUp(_)) => {
                if let Lead::Stopping(plan, asked) | Lead::GoesOn(plan, asked, ..) = &self.cuts.lead
                    && *asked == call
                {
                    self.cuts.last_tries += usize::from(plan.last);
                    self.cuts.lead = Lead::Idle;
                }
                if self.cuts.last_tries == LAST_TRIES {
                    return Err("the last checkpoint was given up too often".into());
                }
                return Ok(());
            }
            _ => {}
        }
        let lead = std::mem::take(&mut self.cuts.lead);
        self.cuts.lead = match (lead, body) {
            (Lead::Stopping(plan, asked), Answer::Lead(reply)) if asked == call => match reply {
                LeadReply::Stopped { batches, kept } => {
                    let files = kept.iter().map(|file| world.kept_files[&file.path].clone()).collect();
                    let calls = self.ask_snapshots(world, pid, member, plan, SnapshotStep::Begin);
                    Lead::Beginning(plan, calls, *batches, files)
                }
                _ => Lead::Stopping(plan, self.lead(world, pid, member, plan, LeadStep::Stop)),
            },
            (Lead::Beginning(plan, mut calls, batches, kept), Answer::Done) => {
                calls.retain(|open| *open != call);
                if !calls.is_empty() {
                    Lead::Beginning(plan, calls, batches, kept)
                } else if self.shared.is_some() && plan.last && world.gives_up_at_the_cut() {
                    give_up(world, pid, member)
                } else if self.shared.is_some() {
                    Lead::GoesOn(plan, self.lead(world, pid, member, plan, LeadStep::GoOn), batches, kept)
                } else {
                    self.barrier = false;
                    self.write(world, pid, member, plan, batches, kept)
                }
            }
            (Lead::GoesOn(plan, asked, batches, kept), Answer::Lead(LeadReply::Whole)) if asked == call => {
                self.write(world, pid, member, plan, batches, kept)
            }
            (Lead::Writing(plan, mut calls, batches, kept), Answer::Contents(contents)) => {
                if let Some((_, written)) = calls.iter_mut().find(|(asked, _)| *asked == call) {
                    *written = Some(contents);
                }
                if calls.iter().any(|(_, written)| written.is_none()) {
                    Lead::Writing(plan, calls, batches, kept)
                } else if plan.last && world.takes_no_last_checkpoint() {
                    give_up(world, pid, member)
                } else {
                    let contents = calls.into_iter().filter_map(|(_, contents)| contents).collect();
                    world.publish(plan.number, StoredCheckpoint { batches, contents, kept })?;
                    let process = &world.processes[pid];
                    process.status.iter().for_each(|status| process.made.are_there(status.start));
                    Lead::Keeping(plan, self.ask_snapshots(world, pid, member, plan, SnapshotStep::Keep))
                }
            }
            (Lead::Keeping(plan, mut calls), Answer::Done) => {
                calls.retain(|open| *open != call);
                if calls.is_empty() && plan.last {
                    self.has_drained(world, pid, member)?;
                }
                if calls.is_empty() { Lead::Idle } else { Lead::Keeping(plan, calls) }
            }
            (lead, _) => lead,
        };
        Ok(())
    }
}

/// As `give_up` in `checkpointer/drain.rs`.
fn give_up(world: &mut World, pid: Pid, member: MemberId) -> Lead {
    world.log("the last checkpoint cannot be written");
    world.counted.without_checkpoint += 1;
    world.call(pid, (Role::Ps, 0), Request::WithoutCheckpoint(member));
    Lead::GivenUp
}

impl World {
    /// A manifest is written. What the checkpoint says is trained on is what the ps hold and the trainers keep.
    fn publish(&mut self, number: u64, stored: StoredCheckpoint) -> Result<(), String> {
        for (ps, contents) in stored.contents.iter().enumerate() {
            for id in self.all_pushed() {
                let applied = contents.applied.contains_key(&id);
                let kept = stored.kept.iter().flatten().any(|(of, _)| *of == id);
                let trained = stored.batches.contains(id);
                if trained != (applied || kept) || applied && kept {
                    return Err(format!(
                        "checkpoint {number} is torn: {id} is trained on: {trained}, applied in ps {ps}: {applied}, kept: {kept}"
                    ));
                }
            }
        }
        // Another process may have written this number: it is the older cut of an attempt that is over, or of a newer one.
        if let Entry::Vacant(new) = self.store.entry(number) {
            new.insert(stored);
            self.published_at = self.now;
            self.counted.checkpoints += 1;
        }
        Ok(())
    }
}
