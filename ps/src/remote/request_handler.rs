//! Answers the requests of one exchange about a table: sends them to the shards, and returns pending answers.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arrow::datatypes::Float32Type;
use forebay_actors::Fault;
use forebay_net::{Message, PendingAnswer};
use futures::future::ready;

use crate::client::TableClient;
use crate::push::{PushOutcome, Sender};
use crate::wire::messages::{Encoded, MOST_VALUES, Shape, Wire, columns, push_answer, pushed, read_push};
use crate::wire::metadata::{Answer, PullHeader, Tail};
use crate::wire::own_widths::{cut, pad};
use crate::wire::process::shape;
use crate::wire::row_columns::{batch, keys, rows};

/// What the requests of an exchange ask for.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Read { insert: bool, wire: Wire },
    ReadWhole,
    Push { wire: Wire },
    Import { state: bool },
}

/// The requests of one exchange.
pub(super) struct RequestHandler<'a> {
    table: &'a TableClient,
    /// The sender of the requests, if it is to be checked.
    sender: Option<Sender>,
    /// A buffer, kept from one request to the next.
    rows: Mutex<Vec<f32>>,
}

impl<'a> RequestHandler<'a> {
    pub(super) fn new(table: &'a TableClient, sender: Option<Sender>) -> Self {
        Self { table, sender, rows: Mutex::default() }
    }

    /// Floats that a request asks for, or brings.
    pub(super) fn size(&self, message: &Message, kind: Kind) -> usize {
        let dim = if matches!(kind, Kind::ReadWhole) { self.table.whole_dim() } else { self.table.row_dim() };
        message.batch.as_ref().map_or(0, |batch| batch.num_rows().saturating_mul(dim))
    }

    /// Sends a request to the shards and returns its pending answer. Waits for room in their mailboxes.
    pub(super) async fn ask(&'a self, message: Message, kind: Kind) -> Result<PendingAnswer<'a>, Fault> {
        match kind {
            Kind::Read { insert, wire } => self.read(message, insert, wire).await,
            Kind::ReadWhole => self.read_whole(message).await,
            Kind::Push { wire } => self.push(message, wire).await,
            Kind::Import { state } => self.import(message, state).await,
        }
    }

    async fn read(&'a self, message: Message, insert: bool, wire: Wire) -> Result<PendingAnswer<'a>, Fault> {
        let PullHeader { after, .. } = PullHeader::read(&message.metadata, self.sender.as_ref())?;
        if after.is_some() && !insert {
            return Err(Fault::user("only the pull of a trainer of this run waits for a round"));
        }
        let columns = columns(message)?;
        let keys = keys(&columns)?;
        let dim = self.table.row_dim();
        self.check_size(keys.len(), dim)?;
        let asked = self.table.ask_rows(keys, insert, after).await?;
        let begins = self.table.layout().own_widths(keys);
        Ok(Box::pin(async move {
            let mut rows = self.take();
            let held = self.table.take_rows(asked, &mut rows).await?;
            if let Some(begins) = &begins {
                cut(&mut rows, dim, begins);
            }
            self.rows(rows, wire, shape(begins.as_deref(), dim), held)
        }))
    }

    /// Whole rows always travel as f32, so they are exact.
    async fn read_whole(&'a self, message: Message) -> Result<PendingAnswer<'a>, Fault> {
        let columns = columns(message)?;
        let (keys, dim) = (keys(&columns)?, self.table.whole_dim());
        self.check_size(keys.len(), dim)?;
        let asked = self.table.ask_whole(keys).await?;
        Ok(Box::pin(async move {
            let mut rows = self.take();
            self.table.take_whole(asked, &mut rows).await?;
            self.rows(rows, Wire::F32, Shape::Rows(dim), Duration::ZERO)
        }))
    }

    fn rows(&self, mut rows: Vec<f32>, wire: Wire, shape: Shape<'_>, held: Duration) -> Result<Message, Fault> {
        let rows_answer = Answer { pushed: PushOutcome::Already, held, number: 0 };
        let Some(encoded) = wire.encode("row", &mut rows, shape)? else {
            // The trainer must see weights that are not finite, instead of a fault of the wire.
            return Ok(Message::metadata(rows_answer.write(&Tail::Floats(rows))));
        };
        self.keep(rows);
        let Encoded { field, column, exponents } = encoded;
        let batch = batch(vec![field], vec![column])?;
        Ok(Message { batch: Some(batch), metadata: rows_answer.write(&Tail::Exponents(exponents)) })
    }

    async fn push(&'a self, message: Message, wire: Wire) -> Result<PendingAnswer<'a>, Fault> {
        let (columns, header, exponents) = read_push(message, self.sender.as_ref())?;
        let (keys, mut spare) = (keys(&columns)?, self.take());
        let (begins, dim, mut padded) = (self.table.layout().own_widths(keys), self.table.row_dim(), Vec::new());
        let mut grads = wire.decode(&columns, "grad", shape(begins.as_deref(), dim), &exponents, &mut spare)?;
        if let Some(begins) = &begins {
            pad(grads, dim, begins, &mut padded);
            grads = &padded;
        }
        let pending = self.table.ask_push(keys, grads, header.step, header.stamp).await?;
        self.keep(spare);
        push_answer(header, self.table.pushed(pending)).await
    }

    async fn import(&self, message: Message, state: bool) -> Result<PendingAnswer<'a>, Fault> {
        let columns = columns(message)?;
        let weights = rows::<Float32Type>(&columns, "weight", self.table.row_dim())?;
        let state = match (state, self.table.state_dim()) {
            (true, 0) => Some(&[][..]),
            (true, dim) => Some(rows::<Float32Type>(&columns, "state", dim)?),
            (false, _) => None,
        };
        self.table.import(keys(&columns)?, weights, state).await?;
        Ok(Box::pin(ready(Ok(pushed(PushOutcome::Applied)))))
    }

    fn take(&self) -> Vec<f32> {
        std::mem::take(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, rows: Vec<f32>) {
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }

    /// A small request must not ask for an answer without bound.
    fn check_size(&self, keys: usize, dim: usize) -> Result<(), Fault> {
        if keys.saturating_mul(dim) <= MOST_VALUES as usize {
            return Ok(());
        }
        Err(Fault::user(format!(
            "{keys} keys of {dim} weights each were asked for at once; at most {} fit one answer",
            MOST_VALUES as usize / dim
        )))
    }
}
