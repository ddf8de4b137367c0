//! What a trainer of a cluster does for the checkpoints of its run: it stops for the cuts that the coordinator orders, and watches the
//! run's status.

use std::sync::Arc;

use forebay_actors::Control;
use tokio_util::task::AbortOnDropHandle;

use super::checkpoint_thread::EndRun;
use super::cut::CutPoint;
use super::cut_client;
use super::shared_cut::SharedCut;
use crate::checkpoint::KeptWriter;
use crate::cluster::{ClusterSession, RunPhase};

/// Stops this trainer whenever a checkpoint is cut over all trainers, until the handle is dropped. With an exact order, `keeper` writes
/// its kept gradients.
pub(crate) fn follow_cuts(
    session: &ClusterSession,
    shared: Arc<SharedCut>,
    keeper: Option<KeptWriter>,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(session.io.spawn(cut_client::follow(session.member.clone(), shared, keeper)))
}

/// Tells `cut_point` what is read, once a reader has listed it, and which windows are done. Ends the run with a checkpoint when
/// it drains, if this trainer makes them.
pub(crate) fn watch_run(
    session: &ClusterSession,
    cut_point: Arc<CutPoint>,
    end_run: Option<EndRun>,
    pipeline: Control,
) {
    let mut status = session.member.subscribe();
    session.io.spawn(async move {
        let mut told = false;
        loop {
            let (data, phase) = {
                let status = status.borrow_and_update();
                cut_point.windows_counted(status.first_open);
                (status.data.clone(), status.phase.clone())
            };
            if let (Some(data), false) = (data, told) {
                told = true;
                if let Err(fault) = cut_point.reads(&data) {
                    pipeline.kill(fault);
                }
            }
            if let (RunPhase::Draining, Some(end_run)) = (&phase, &end_run) {
                end_run.end_run_with_checkpoint();
            }
            // An error means that this process ends.
            if matches!(phase, RunPhase::Failed(_) | RunPhase::Over) || status.changed().await.is_err() {
                return;
            }
        }
    });
}
