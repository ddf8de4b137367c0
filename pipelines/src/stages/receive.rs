//! `receive`: takes each batch from this trainer's receive queue once, until the coordinator says that the run is finished, or the trainer
//! leaves.

use std::sync::Arc;
use std::time::Instant;

use forebay_actors::{Batch, Fault, Source, StageCx};
use forebay_batches::wire::columns;
use forebay_batches::{BatchId, ReadyBatch, Ticket, TrainBatch};
use tokio::sync::watch;

use super::participation::Participation;
use crate::checkpointer::cut::CutPoint;
use crate::cluster::batches::receive_queue::ReceiveQueue;
use crate::cluster::{RunPhase, RunStatus};
use crate::metrics::process_report::LOST_READERS;

/// A batch that trainers receive: a [`TrainBatch`], or a [`ReadyBatch`] if readers look up rows.
pub(crate) trait Receivable: Batch {
    /// Combines a batch with the rows of its keys, if the reader sent them.
    fn pack(batch: TrainBatch, rows: Option<Vec<f32>>) -> Result<Self, Fault>
    where
        Self: Sized;
}

impl Receivable for TrainBatch {
    fn pack(batch: TrainBatch, rows: Option<Vec<f32>>) -> Result<Self, Fault> {
        match rows {
            None => Ok(batch),
            Some(_) => Err(looks_up(&batch, "came with the rows of its keys", "trainer")),
        }
    }
}

impl Receivable for ReadyBatch {
    fn pack(batch: TrainBatch, rows: Option<Vec<f32>>) -> Result<Self, Fault> {
        match rows {
            Some(rows) => Ok(Self { train: batch, rows, dense: None, ticket: Ticket::free() }),
            None if batch.rows() == 0 => {
                Ok(Self { train: batch, rows: Vec::new(), dense: None, ticket: Ticket::free() })
            }
            None => Err(looks_up(&batch, "came without the rows of its keys", "reader")),
        }
    }
}

fn looks_up(batch: &TrainBatch, what: &str, who: &str) -> Fault {
    Fault::internal(format!("{} {what}, but placement.lookup_at is \"{who}\"", BatchId::of(batch)))
}

/// The `receive` source.
pub(crate) struct Receive<T> {
    receive_queue: Arc<ReceiveQueue>,
    status: watch::Receiver<RunStatus>,
    /// Also passes on empty batches, because each takes part in a round.
    in_rounds: bool,
    /// Set if the run has checkpoints.
    cut_point: Option<Arc<CutPoint>>,
    seq: u64,
    of: std::marker::PhantomData<fn() -> T>,
}

impl<T> Receive<T> {
    pub(crate) fn new(
        receive_queue: Arc<ReceiveQueue>,
        status: watch::Receiver<RunStatus>,
        participation: &Participation,
    ) -> Self {
        let (in_rounds, cut_point) = (participation.round().is_some(), participation.cut_point().cloned());
        Self { receive_queue, status, in_rounds, cut_point, seq: 0, of: std::marker::PhantomData }
    }

    /// Whether a batch was trained on before this process began.
    fn trained_before(&self, batch: &TrainBatch) -> bool {
        self.cut_point.as_ref().is_some_and(|cut_point| cut_point.batch_started(batch))
    }
}

impl<T: Receivable> Source for Receive<T> {
    type Out = T;

    fn describe(&self) -> String {
        "from the readers".into()
    }

    async fn next(&mut self, cx: &StageCx) -> Result<Option<T>, Fault> {
        let mut waiting_since = None;
        loop {
            let phase = {
                let status = self.status.borrow_and_update();
                self.receive_queue.update_status(status.data.as_ref().map(|data| data.windows), status.first_open);
                status.phase.clone()
            };
            while let Some(queued) = self.receive_queue.take() {
                if let Some(since) = waiting_since.take() {
                    // In a later term the wait was for a reader that has lost its lease, not for this one.
                    let lost = (queued.header.term > 0).then(|| LOST_READERS.to_owned());
                    if let Some(process) = lost.or_else(|| self.receive_queue.reader_of(&queued)) {
                        cx.meter().waited_for(&process, Instant::elapsed(&since));
                    }
                }
                let (mut batch, rows) = columns::read(&queued.header, &queued.columns)?;
                if self.trained_before(&batch) {
                    self.receive_queue.batch_done(queued.header.id);
                    continue;
                }
                if batch.rows() == 0 && !self.in_rounds {
                    // The batch carries only the end of its window.
                    if let Some(cut_point) = &self.cut_point {
                        cut_point.batch_done(queued.header.id, 0, 0);
                    }
                    self.receive_queue.batch_done(queued.header.id);
                    continue;
                }
                batch.lineage.seq = self.seq;
                self.seq += 1;
                return T::pack(batch, rows).map(Some);
            }
            match phase {
                RunPhase::Failed(failure) => return Err(failure.fault()),
                _ if self.receive_queue.has_ended() => return Ok(None),
                RunPhase::Finished | RunPhase::Over => return Ok(None),
                _ => {}
            }
            let (receive_queue, status) = (&self.receive_queue, &mut self.status);
            let arrival = async {
                tokio::select! {
                    () = receive_queue.wait_for_arrival() => Ok(()),
                    changed = status.changed() => changed,
                }
            };
            let since = *waiting_since.get_or_insert_with(Instant::now);
            cx.meter().awaits(receive_queue.awaited_reader().map(|reader| (reader, since)));
            let arrived = cx.meter().starved_on("readers", arrival).await;
            cx.meter().awaits(None);
            arrived.map_err(|_| Fault::internal("a trainer receives no run status any more"))?;
        }
    }
}
