//! The end of a trainer's work, the answers to its requests, and what readers send it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use tokio::sync::mpsc::unbounded_channel;

use super::super::members::Role;
use super::super::messages::{MemberId, RunPhase, RunStatus};
use super::network::{Answer, OnStream, Pid, Request};
use super::trainer::{Ending, SimTrainer};
use super::world::World;

impl SimTrainer {
    /// The end of the pipeline and of the run. A barrier passes all stages before the end does.
    pub(super) fn end(
        &mut self,
        world: &mut World,
        pid: Pid,
        member: MemberId,
        status: &RunStatus,
    ) -> Result<(), String> {
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
            let data = world.data();
            let rows = data.rows * u64::from(data.epochs);
            let counts = status.counts;
            if counts.trained + counts.rejected != rows {
                return Err(format!("the books have {counts:?} of {rows} rows"));
            }
            let all = world.all_pushed();
            for contents in contents {
                if let Some(missing) = all.iter().find(|id| contents.get(id) != Some(&1)) {
                    return Err(format!("{missing} was applied {:?} times in the end", contents.get(missing)));
                }
                if contents.len() != all.len() {
                    return Err(format!("{} batches were applied, expected {}", contents.len(), all.len()));
                }
            }
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
        if let Some(at) = self.pushes.iter().position(|push| push.calls.contains(&call)) {
            self.pushes[at].calls.retain(|open| *open != call);
            if self.pushes[at].calls.is_empty()
                && let Some(looked) = self.pushes.remove(at).looked
            {
                self.done(looked.header.id, looked.header.row);
                self.leave();
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
        self.cut_answered(world, pid, call, body)
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
                let channel = self.receive_queue.open(&reader, replies);
                self.streams.insert(stream, (channel, received));
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
            _ => world.break_stream(stream),
        }
        Ok(())
    }

    pub(super) fn stream_broke(&mut self, stream: u64) {
        if let Some((channel, _)) = self.streams.remove(&stream) {
            self.receive_queue.close(channel);
        }
    }
}
