//! Where a trainer has its batches from: the queue of what readers send, or its own source. Also handles a batch that is done.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use forebay_batches::BatchId;
use forebay_batches::wire::metadata::Header;
use tokio::sync::mpsc::unbounded_channel;

use super::super::messages::{MemberId, RunPhase, RunStatus};
use super::network::{OnStream, Pid};
use super::trainer::{AtLookUp, Looked, SimTrainer};
use super::world::World;
use crate::checkpoint::BatchOrder;

impl SimTrainer {
    /// As the stage `receive`, or the source and the stage `batch` of a trainer that reads by itself.
    pub(super) fn receives(&mut self, world: &mut World, pid: Pid, member: MemberId, status: &RunStatus) {
        if let Some(source) = &mut self.source {
            source.step(world, pid, member, status, false);
        }
        while self.at_look_up.is_none() && !self.source_ended {
            let Some(header) = self.next(world, status) else { return };
            let Header { id, row: rows, closes, .. } = header;
            if let Some(end) = closes {
                match &self.shared {
                    Some(shared) => shared.log().window_ends(id, end),
                    None => self.position.window_ends(id, end),
                }
            }
            if self.before.contains(id) {
                self.record_done(id);
                self.skips();
                continue;
            }
            if rows == 0 && self.round.is_none() {
                self.done(id, 0);
                self.skips();
                continue;
            }
            let looked = Looked { header, ticket: None };
            self.at_look_up = Some(AtLookUp { looked, arrival: self.arrivals, entered: false });
            self.arrivals += 1;
        }
    }

    /// The stage `lookup` passes over a batch, which has a number, too.
    fn skips(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.skip(self.arrivals);
            self.arrivals += 1;
        }
    }

    fn next(&mut self, world: &World, status: &RunStatus) -> Option<Header> {
        let Some(source) = &mut self.source else {
            let taken = self.receive_queue.take();
            let is_over = matches!(status.phase, RunPhase::Finished | RunPhase::Over);
            self.source_ended = taken.is_none() && (is_over || self.receive_queue.has_ended());
            return taken.map(|taken| taken.header);
        };
        let Some(made) = source.next(world) else {
            self.source_ended = source.is_at_end();
            return None;
        };
        // A batch of an earlier term is trained on, too.
        source.progress.batch_sent(made.id, made.term, made.rows, made.closes);
        if made.rows == 0 {
            source.progress.batch_done(made.id);
        }
        let (id, term, row, closes) = (made.id, made.term, made.rows, made.closes);
        Some(Header { id, term, split: 0, row, closes, done_before: 0, urgent: false, labels: 1, other_rows: 0 })
    }

    pub(super) fn done(&mut self, id: BatchId, rows: u64) {
        match &self.shared {
            Some(shared) => shared.log().batch_done(id, rows),
            None => self.position.batch_done(id, rows, BatchOrder::Any),
        }
        self.record_done(id);
    }

    fn record_done(&self, id: BatchId) {
        match &self.source {
            Some(source) => source.progress.batch_done(id),
            None => self.receive_queue.batch_done(id),
        }
    }

    pub(super) fn comes_by_stream(
        &mut self,
        world: &mut World,
        stream: u64,
        member: Option<MemberId>,
        body: OnStream,
    ) -> Result<(), String> {
        match body {
            OnStream::Open { attempt, reader } if member.is_some_and(|member| member.attempt == attempt) => {
                let (replies, received) = unbounded_channel();
                match self.receive_queue.open(&reader, replies) {
                    Ok(channel) => drop(self.streams.insert(stream, (channel, received))),
                    Err(_) => world.break_stream(stream),
                }
            }
            OnStream::Batch(header) => {
                let Some((channel, _)) = self.streams.get(&stream) else { return Ok(()) };
                let columns = RecordBatch::new_empty(Arc::new(Schema::empty()));
                match self.receive_queue.put(*channel, header, columns, 1) {
                    // The reader opens the channel again.
                    Err(fault) if fault.retryable => world.break_stream(stream),
                    received => received.map_err(|fault| fault.to_string())?,
                }
            }
            OnStream::Answer { call } => {
                if let Some(ahead) = &mut self.ahead {
                    ahead.push_answered(call);
                }
            }
            _ => world.break_stream(stream),
        }
        Ok(())
    }

    pub(super) fn stream_broke(&mut self, stream: u64) {
        if self.ahead.as_mut().is_some_and(|ahead| ahead.stream_broke(stream)) {
            return;
        }
        if let Some((channel, _)) = self.streams.remove(&stream) {
            self.receive_queue.close(channel);
        }
    }
}
