//! `ship`: puts batches into this reader's send queue, which keeps them until they are done. It waits for room
//! in the queue, and after the last batch until every batch is done.

use std::sync::Arc;

use forebay_actors::{Batch, Fault, Lineage, Sink, StageCx};
use forebay_batches::wire::columns::{self, Layout};
use forebay_batches::wire::metadata::Header;
use forebay_batches::{BatchId, ReadyBatch, Ticket, TrainBatch};

use crate::cluster::batches::lease_progress::LeaseProgress;
use crate::cluster::batches::send_queue::{QueuedBatch, SendQueue};
use crate::cluster::lease_client::LostLeases;

/// A batch that readers send: a [`TrainBatch`], or a [`ReadyBatch`] if readers look up rows.
pub(crate) trait Sendable: Batch {
    /// Whether the batch is the last of its window.
    fn closes(&self) -> bool;
    /// Returns the batch, and if it was looked up, the rows of its keys and its ticket.
    fn unpack(self) -> (TrainBatch, Option<(Vec<f32>, Ticket)>);
}

impl Sendable for TrainBatch {
    fn closes(&self) -> bool {
        self.closes.is_some()
    }

    fn unpack(self) -> (TrainBatch, Option<(Vec<f32>, Ticket)>) {
        (self, None)
    }
}

impl Sendable for ReadyBatch {
    fn closes(&self) -> bool {
        self.train.closes()
    }

    fn unpack(self) -> (TrainBatch, Option<(Vec<f32>, Ticket)>) {
        (self.train, Some((self.rows, self.ticket)))
    }
}

/// The `ship` sink.
pub(crate) struct Ship<T> {
    send_queue: Arc<SendQueue>,
    progress: Arc<LeaseProgress>,
    lost: LostLeases,
    /// The number of trainers that take each step together, each with its own queue; otherwise 1.
    trainers: u32,
    layout: Layout,
    /// With several trainers: the batches of the incomplete round.
    round: Vec<T>,
}

impl<T: Sendable> Ship<T> {
    pub(crate) fn new(
        send_queue: Arc<SendQueue>,
        progress: Arc<LeaseProgress>,
        lost: LostLeases,
        trainers: u32,
        layout: Layout,
    ) -> Self {
        Self { send_queue, progress, lost, trainers, layout, round: Vec::new() }
    }

    async fn enqueue(&self, cx: &StageCx, batch: TrainBatch, more: Option<(Vec<f32>, Ticket)>) -> Result<(), Fault> {
        let (id, samples) = (BatchId::of(&batch), batch.rows() as u64);
        let queue = (id.index % self.trainers) as usize;
        if !self.progress.batch_sent(id, batch.window.term, samples, batch.closes) {
            // The lease is lost, or it came back, and this reader will make the batch again.
            return Ok(());
        }
        let Lineage { split, row, .. } = batch.lineage;
        let header = Header {
            id,
            term: batch.window.term,
            split,
            row,
            closes: batch.closes,
            done_before: 0,
            urgent: false,
            labels: batch.labels.len().checked_div(batch.rows).unwrap_or(1) as u32,
            other_rows: batch.other_rows,
        };
        let (rows, ticket) = more.map_or((None, None), |(rows, ticket)| (Some(rows), Some(ticket)));
        let columns = columns::write(batch, rows, self.layout)?;
        // All trainers may wait for an earlier batch of a lost lease, which this reader will read after this batch. A blocked
        // source would never ask for that lease, so this batch stops waiting for room as soon as such a lease exists.
        let room = async {
            tokio::select! {
                room = self.send_queue.wait_for_room(queue, id) => room,
                () = self.progress.wait_for_earlier_lease(id) => Ok(()),
                () = self.lost.wait() => Ok(()),
            }
        };
        cx.meter().blocked_on("trainer", room).await?;
        let bytes = columns::bytes(&columns);
        self.send_queue.put(queue, QueuedBatch { header, bytes, columns, rows: samples, _ticket: ticket });
        Ok(())
    }

    /// Sends one batch to each trainer, because every trainer takes part in every step. In the last round of a window every
    /// batch carries the window's end, and empty batches fill the round. Every batch also carries the rows of the others.
    async fn send_round(&mut self, cx: &StageCx) -> Result<(), Fault> {
        let batches: Vec<_> = self.round.drain(..).map(Sendable::unpack).collect();
        let Some((last, _)) = batches.last() else { return Ok(()) };
        let (lineage, window, first) = (last.lineage.clone(), last.window, last.index - (batches.len() as u32 - 1));
        let round_end = first + self.trainers;
        let closes = last.closes.map(|end| forebay_batches::WindowEnd { batches: round_end, ..end });
        let rows = batches.iter().map(|(batch, _)| batch.rows).sum::<usize>() as u32;
        let mut next = first;
        for (mut batch, more) in batches {
            batch.closes = closes;
            batch.other_rows = rows - batch.rows as u32;
            next += 1;
            self.enqueue(cx, batch, more).await?;
        }
        for index in next..round_end {
            let lineage = lineage.clone();
            let empty = TrainBatch { lineage, window, index, closes, other_rows: rows, ..TrainBatch::default() };
            self.enqueue(cx, empty, None).await?;
        }
        Ok(())
    }
}

impl<T: Sendable> Sink for Ship<T> {
    type In = T;

    fn describe(&self) -> String {
        "to the trainers".into()
    }

    async fn write(&mut self, batch: T, cx: &StageCx) -> Result<(), Fault> {
        if self.trainers == 1 {
            let (batch, more) = batch.unpack();
            return self.enqueue(cx, batch, more).await;
        }
        let closes = batch.closes();
        self.round.push(batch);
        if closes || self.round.len() == self.trainers as usize { self.send_round(cx).await } else { Ok(()) }
    }

    async fn finish(&mut self, cx: &StageCx) -> Result<(), Fault> {
        cx.meter().blocked_on("trainer", self.send_queue.wait_until_empty()).await
    }
}
