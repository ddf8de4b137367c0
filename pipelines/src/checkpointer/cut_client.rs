//! The trainers' side of a cut: each follows the orders of the coordinator, and the first leads.

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::Retry;
use futures::executor::block_on;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::cut::{CutPoint, Shards};
use super::kept_file::KeptFile;
use super::shared_cut::SharedCut;
use crate::checkpoint::{CutPlan, KeptWriter, TrainedBatches};
use crate::cluster::RunPhase;
use crate::cluster::cuts::{CutOrder, CutReport, CutRequest, LeadCutRequest, LeadReply, LeadStep};
use crate::cluster::member::Member;
use crate::metrics::running_metrics::RunningMetrics;
use crate::model_folder::FileEntry;

/// Requests are tried again for this long, unless the run has failed.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Leads the cuts of a run with several trainers: the first trainer does.
#[derive(Clone)]
pub(crate) struct CutLeader {
    member: Member,
}

impl CutLeader {
    pub(crate) fn new(member: Member) -> Self {
        Self { member }
    }

    /// Stops all trainers, begins a snapshot in every shard, and lets the trainers go on. `cut_point` is the cut point of this trainer.
    /// `None`: the run has ended, or ends without a checkpoint. Blocks for as long as the trainers stand still.
    ///
    /// # Errors
    /// A retryable fault if the cut was given up. The snapshots could not begin.
    pub(crate) fn cut(&self, plan: CutPlan, cut_point: &CutPoint) -> Option<Result<Stopped, Fault>> {
        let stopped = match self.ask(plan, LeadStep::Stop)? {
            Ok(LeadReply::Stopped { batches, kept }) => {
                Stopped { batches: *batches, kept, metrics: cut_point.metrics() }
            }
            Ok(other) => return Some(Err(given_up(other))),
            Err(fault) => return Some(Err(fault)),
        };
        let begun = match cut_point.shards() {
            Shards::InPs(ps) => block_on(ps.begin(plan)),
            Shards::Here(_) => Err(Fault::internal("several trainers share the shards of one of them")),
        };
        // The trainers go on, even if the snapshots did not begin.
        Some(match (self.ask(plan, LeadStep::GoOn)?, begun) {
            (_, Err(fault)) | (Err(fault), Ok(())) => Err(fault),
            (Ok(LeadReply::Whole), Ok(())) => Ok(stopped),
            (Ok(other), Ok(())) => Err(given_up(other)),
        })
    }

    /// Takes one step. `None`: the run has ended.
    fn ask(&self, plan: CutPlan, step: LeadStep) -> Option<Result<LeadReply, Fault>> {
        let member = self.member.clone();
        let request = LeadCutRequest { member: member.id(), cut: plan.try_id, checkpoint: plan.number, step };
        let asking = async move {
            loop {
                match request_until_failed(&member, "lead_cut", &request).await {
                    Ok(LeadReply::Wait) => {}
                    // The status that says so is on its way, and ends this wait.
                    Ok(LeadReply::RunEnds) => std::future::pending().await,
                    reply => return reply,
                }
            }
        };
        let member = self.member.clone();
        // The caller's thread has no runtime of its own.
        let asked = self.member.io().spawn(async move {
            tokio::select! {
                reply = asking => Some(reply),
                () = ended(&member) => None,
            }
        });
        block_on(asked).unwrap_or_else(|e| Some(Err(Fault::of_task("the request for a cut panicked", e))))
    }
}

/// What a cut takes while all trainers stand still.
pub(crate) struct Stopped {
    /// What is trained on.
    pub(crate) batches: TrainedBatches,
    /// By rank the files of the gradients that an exact order keeps.
    pub(crate) kept: Vec<FileEntry>,
    /// The running metrics of the trainer that leads.
    pub(crate) metrics: RunningMetrics,
}

fn given_up(reply: LeadReply) -> Fault {
    let why = match reply {
        LeadReply::GivenUp(why) => why,
        _ => "the coordinator sent the reply to another request".to_owned(),
    };
    Fault::external(format!("the trainers could not be stopped at one moment: {why}")).retryable()
}

/// Waits until there are no more cuts: the run is finished or has failed, or is drained without a checkpoint.
async fn ended(member: &Member) {
    let over = |phase: &RunPhase| matches!(phase, RunPhase::Finished | RunPhase::Over | RunPhase::Failed(_));
    // An error means that this process ends.
    let _ = member.subscribe().wait_for(|status| status.without_checkpoint || over(&status.phase)).await;
}

async fn request_until_failed<B: Serialize, R: DeserializeOwned>(
    member: &Member,
    kind: &str,
    body: &B,
) -> Result<R, Fault> {
    let status = member.subscribe();
    let failed = move || match &status.borrow().phase {
        RunPhase::Failed(failure) => Some(failure.fault()),
        _ => None,
    };
    let retry = Retry::within(TIMEOUT).unless(failed);
    retry.run("the coordinator", || member.request_once(kind, body)).await
}

/// Follows the coordinator's orders until there are no more cuts: opens and closes the gate of this trainer, and reports. With an exact
/// order, `keeper` writes the kept gradients of this trainer.
pub(crate) async fn follow(member: Member, shared: Arc<SharedCut>, keeper: Option<KeptWriter>) {
    tokio::select! {
        () = ended(&member) => {}
        fault = follow_orders(&member, &shared, keeper) => tracing::debug!(%fault, "this trainer takes part in no more cuts"),
    }
    shared.gate.open();
}

async fn follow_orders(member: &Member, shared: &SharedCut, keeper: Option<KeptWriter>) -> Fault {
    let (mut follows, mut report, mut stopped_for) = (CutOrder::GoOn, None, None);
    let mut kept_file = KeptFile::of(keeper);
    loop {
        let request = CutRequest { member: member.id(), follows, report: report.take() };
        let asked = request_until_failed(member, "cut", &request);
        let order = match follows {
            // The order may change while the last batches are applied and the kept gradients are written: the coordinator gives up a cut
            // that takes long.
            CutOrder::Stop { cut, checkpoint, .. } if stopped_for != Some(cut) => tokio::select! {
                order = asked => order,
                kept = async {
                    shared.gate.until_quiet().await;
                    kept_file.written(checkpoint, cut).await
                } => {
                    stopped_for = Some(cut);
                    report = Some(match kept {
                        Ok(kept) => CutReport::Stopped { cut, done: shared.log().windows(), kept },
                        Err(fault) => {
                            tracing::warn!("this trainer takes no part in checkpoint {checkpoint}: {fault}");
                            CutReport::Failed { cut }
                        }
                    });
                    continue;
                }
            },
            _ => asked.await,
        };
        let order = match order {
            Ok(order) => order,
            Err(fault) => return fault,
        };
        if order == follows {
            continue;
        }
        match order {
            CutOrder::GoOn => {
                if let Some(late) = kept_file.under_way() {
                    tracing::warn!(
                        "this trainer goes on without its part of checkpoint {late}, which the store has not taken in time"
                    );
                }
                shared.gate.open();
            }
            CutOrder::Hold { cut } => report = Some(CutReport::Held { cut, looked_up: shared.gate.close() }),
            CutOrder::Stop { after: None, .. } => drop(shared.gate.close()),
            CutOrder::Stop { after: Some(most), .. } => shared.gate.close_after(most),
        }
        follows = order;
    }
}
