//! What the messages of one exchange ask of a table.
//!
//! Comes in: columns of anybody. Goes out: the answer to come, once the shards have been asked. Waits for room in the shards'
//! mailboxes, then for them; nothing blocks the thread.

use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Float16Type, Float32Type};
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{Message, PendingAnswer};
use futures::future::ready;
use half::f16;

use super::MOST_VALUES;
use super::columns::{batch, halves_column, keys, list_field, rows, rows_column};
use super::metadata::{Answer, Header, Tail};
use crate::client::TableClient;
use crate::half_block;
use crate::push::PushOutcome;

/// What the messages of an exchange ask for.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read { insert: bool, half: bool },
    Push { half: bool },
    Import { state: bool },
}

/// Hands the messages of one exchange to the shards, and answers them.
pub(super) struct RequestHandler<'a> {
    table: &'a TableClient,
    /// Kept from one message to the next.
    rows: Mutex<Vec<f32>>,
}

impl<'a> RequestHandler<'a> {
    pub(super) fn new(table: &'a TableClient) -> Self {
        Self { table, rows: Mutex::default() }
    }

    /// Floats that a question asks for, or brings.
    pub(super) fn size(&self, message: &Message) -> usize {
        message.batch.as_ref().map_or(0, |batch| batch.num_rows().saturating_mul(self.table.row_dim()))
    }

    /// Hands a message over to the shards, and gives back the answer to come.
    pub(super) async fn ask(&'a self, message: Message, kind: Kind) -> Result<PendingAnswer<'a>, Fault> {
        match kind {
            Kind::Read { insert, half } => self.read(message, insert, half).await,
            Kind::Push { half } => self.push(message, half).await,
            Kind::Import { state } => self.import(message, state).await,
        }
    }

    async fn read(&'a self, message: Message, insert: bool, half: bool) -> Result<PendingAnswer<'a>, Fault> {
        let columns = columns(message)?.0;
        let keys = keys(&columns)?;
        self.check_size(keys.len())?;
        let asked = self.table.ask_rows(keys, insert).await?;
        Ok(Box::pin(async move {
            let mut rows = self.take();
            self.table.take_rows(asked, &mut rows).await?;
            self.rows(rows, half)
        }))
    }

    fn rows(&self, rows: Vec<f32>, half: bool) -> Result<Message, Fault> {
        let dim = self.table.row_dim();
        if !half {
            let column = rows_column::<Float32Type>(rows, dim)?;
            let batch = batch(vec![list_field("row", DataType::Float32, dim)], vec![column])?;
            return Ok(Message { batch: Some(batch), metadata: Answer::rows().write(&Tail::Exponents(Vec::new())) });
        }
        let (mut halves, mut exponents) = (Vec::new(), Vec::new());
        if !half_block::encode(&rows, &mut halves, &mut exponents) {
            // Weights may have run away; whoever trains shall see that, and not a fault of the wire.
            return Ok(Message::metadata(Answer::rows().write(&Tail::Floats(rows))));
        }
        self.keep(rows);
        let batch = batch(vec![list_field("row", DataType::Float16, dim)], vec![halves_column(halves, dim)?])?;
        Ok(Message { batch: Some(batch), metadata: Answer::rows().write(&Tail::Exponents(exponents)) })
    }

    async fn push(&'a self, message: Message, half: bool) -> Result<PendingAnswer<'a>, Fault> {
        let dim = self.table.row_dim();
        let (columns, metadata) = columns(message)?;
        let (header, exponents) = Header::read(&metadata)?;
        let (keys, Header { step, stamp }) = (keys(&columns)?, header);
        let asked = if half {
            let halves: &[f16] = rows::<Float16Type>(&columns, "grad", dim)?;
            let mut grads = self.take();
            half_block::decode(halves, &exponents, &mut grads).map_err(Fault::user)?;
            let asked = self.table.ask_push(keys, &grads, step, stamp).await?;
            self.keep(grads);
            asked
        } else {
            self.table.ask_push(keys, rows::<Float32Type>(&columns, "grad", dim)?, step, stamp).await?
        };
        let answer = async move { Ok(answered(self.table.pushed(asked).await?)) };
        if stamp.is_some_and(|stamp| stamp.round.is_some()) {
            // Of two rounds the shards take one after the other: the next push may be of the next.
            let answer = answer.await;
            return Ok(Box::pin(ready(answer)));
        }
        Ok(Box::pin(answer))
    }

    async fn import(&self, message: Message, state: bool) -> Result<PendingAnswer<'a>, Fault> {
        let columns = columns(message)?.0;
        let weights = rows::<Float32Type>(&columns, "weight", self.table.row_dim())?;
        let state = match (state, self.table.state_dim()) {
            (true, 0) => Some(&[][..]),
            (true, dim) => Some(rows::<Float32Type>(&columns, "state", dim)?),
            (false, _) => None,
        };
        self.table.import(keys(&columns)?, weights, state).await?;
        Ok(Box::pin(ready(Ok(answered(PushOutcome::Applied)))))
    }

    fn take(&self) -> Vec<f32> {
        std::mem::take(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, rows: Vec<f32>) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// A few bytes of a question must not ask for an answer without bound.
    fn check_size(&self, keys: usize) -> Result<(), Fault> {
        let dim = self.table.row_dim();
        if keys.saturating_mul(dim) <= MOST_VALUES as usize {
            return Ok(());
        }
        Err(Fault::user(format!(
            "{keys} keys of {dim} weights each were asked for at once; at most {} fit one answer",
            MOST_VALUES as usize / dim
        )))
    }
}

fn answered(pushed: PushOutcome) -> Message {
    Message::metadata(Answer { pushed, number: 0 }.write(&Tail::Exponents(Vec::new())))
}

fn columns(message: Message) -> Result<(RecordBatch, Bytes), Fault> {
    let batch = message.batch.ok_or_else(|| Fault::user("a message came without columns; expected keys at least"))?;
    Ok((batch, message.metadata))
}
