//! How values travel: as f32, or as f16 with exponents; and the messages of a push, of table rows and of dense values
//! alike.

use std::future::ready;
use std::time::Duration;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float16Type, Float32Type};
use forebay_actors::Fault;
use forebay_net::{Message, PendingAnswer};
use serde::{Deserialize, Serialize};

use super::metadata::{Answer, Header, Tail};
use super::row_columns::{
    batch, key_field, keys_column, list_field, lists, lists_column, lists_field, plain, plain_column, rows, rows_column,
};
use crate::half_block;
use crate::push::{PushOutcome, Sender};

/// Floats that the pending requests of one exchange may ask for, all together: 240 MiB.
pub(crate) const MOST_VALUES: u32 = 60 << 20;

/// How rows and gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Four bytes per value, exact.
    #[default]
    F32,
    /// f16 with a scale, a power of two, for each block of 128 values: two bytes per value and one per block. A value `v` of a block whose
    /// largest magnitude is `m` arrives with an error of at most max(2^-11 |v|, 2^-39 m). Exports and imports are exact all the same, and
    /// so is a pull of rows with a weight that is NaN or infinite.
    F16,
}

/// How values lie in their column.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'a> {
    /// One per row of the batch.
    Flat,
    /// A list of this many per row.
    Rows(usize),
    /// A list per row of the batch, of the values between these places.
    Lists(&'a [i32]),
}

/// A column of values.
pub(crate) struct Encoded {
    pub(crate) field: Field,
    pub(crate) column: ArrayRef,
    /// One per block of f16; none with f32.
    pub(crate) exponents: Vec<i8>,
}

impl Wire {
    /// The end of the path of an exchange that carries values in this format.
    pub(crate) fn path(self) -> &'static [&'static str] {
        match self {
            Self::F32 => &[],
            Self::F16 => &["f16"],
        }
    }

    /// Makes a column of `values`. f32 are moved out of the buffer; with f16 it stays as it is. `None`, with the buffer as
    /// it was: f16 cannot hold NaN or infinite values.
    pub(crate) fn encode(self, name: &str, values: &mut Vec<f32>, shape: Shape<'_>) -> Result<Option<Encoded>, Fault> {
        let (mut halves, mut exponents) = (Vec::new(), Vec::new());
        let (kind, column) = match self {
            Self::F32 => (DataType::Float32, column::<Float32Type>(std::mem::take(values), shape)?),
            Self::F16 if !half_block::encode(values, &mut halves, &mut exponents) => return Ok(None),
            Self::F16 => (DataType::Float16, column::<Float16Type>(halves, shape)?),
        };
        let field = match shape {
            Shape::Flat => Field::new(name, kind, false),
            Shape::Rows(dim) => list_field(name, kind, dim),
            Shape::Lists(_) => lists_field(name, kind),
        };
        Ok(Some(Encoded { field, column, exponents }))
    }

    /// The values of a column. f32 are read where they lie; f16 are decoded into `spare`.
    pub(crate) fn decode<'a>(
        self,
        batch: &'a RecordBatch,
        name: &str,
        shape: Shape<'_>,
        exponents: &[i8],
        spare: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], Fault> {
        match self {
            Self::F32 => values::<Float32Type>(batch, name, shape),
            Self::F16 => {
                half_block::decode(values::<Float16Type>(batch, name, shape)?, exponents, spare)
                    .map_err(Fault::user)?;
                Ok(spare)
            }
        }
    }

    /// As [`decode`](Self::decode), always into `values`.
    pub(crate) fn decode_into(
        self,
        batch: &RecordBatch,
        name: &str,
        shape: Shape<'_>,
        exponents: &[i8],
        values: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        if self == Self::F32 {
            values.clear();
            values.extend_from_slice(self::values::<Float32Type>(batch, name, shape)?);
            return Ok(());
        }
        self.decode(batch, name, shape, exponents, values).map(drop)
    }
}

fn column<T: ArrowPrimitiveType>(values: Vec<T::Native>, shape: Shape<'_>) -> Result<ArrayRef, Fault>
where
    arrow::array::PrimitiveArray<T>: From<Vec<T::Native>>,
{
    match shape {
        Shape::Flat => Ok(plain_column::<T>(values)),
        Shape::Rows(dim) => rows_column::<T>(values, dim),
        Shape::Lists(begins) => lists_column::<T>(values, begins),
    }
}

fn values<'a, T: ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
    shape: Shape<'_>,
) -> Result<&'a [T::Native], Fault> {
    match shape {
        Shape::Flat => plain::<T>(batch, name),
        Shape::Rows(dim) => rows::<T>(batch, name, dim),
        Shape::Lists(begins) => lists::<T>(batch, name, begins),
    }
}

/// The request of a push: `{key: u64, grad}`, without `keys` `{grad}`. `grads` keeps what is left of its buffer.
pub(crate) fn push_request(
    wire: Wire,
    header: Header,
    keys: Option<Vec<u64>>,
    grads: &mut Vec<f32>,
    shape: Shape<'_>,
) -> Result<Message, Fault> {
    let not_finite = || Fault::internal("gradients that are not finite came as far as the wire");
    let Encoded { field, column, exponents } = wire.encode("grad", grads, shape)?.ok_or_else(not_finite)?;
    let columns = match keys {
        Some(keys) => batch(vec![key_field(), field], vec![keys_column(keys), column])?,
        None => batch(vec![field], vec![column])?,
    };
    Ok(Message { batch: Some(columns), metadata: header.write(&exponents) })
}

/// The parts of a push's request: columns, header, exponents. If its `sender` is known, the header must name it.
pub(crate) fn read_push(message: Message, sender: Option<&Sender>) -> Result<(RecordBatch, Header, Vec<i8>), Fault> {
    let (header, exponents) = Header::read(&message.metadata)?;
    sender.map_or(Ok(()), |sender| sender.check(header.stamp))?;
    Ok((columns(message)?, header, exponents))
}

pub(crate) fn columns(message: Message) -> Result<RecordBatch, Fault> {
    message.batch.ok_or_else(|| Fault::user("a message came without columns; expected the columns of its exchange"))
}

/// The pending answer to a push. The outcome of a round is awaited first: rounds are open one at a time, and the next
/// push may be of the next round.
pub(crate) async fn push_answer<'a>(
    header: Header,
    outcome: impl Future<Output = Result<PushOutcome, Fault>> + Send + 'a,
) -> Result<PendingAnswer<'a>, Fault> {
    if header.stamp.is_some_and(|stamp| stamp.round.is_some()) {
        return Ok(Box::pin(ready(outcome.await.map(pushed))));
    }
    Ok(Box::pin(async move { outcome.await.map(pushed) }))
}

/// The answer with the outcome of a push.
pub(crate) fn pushed(pushed: PushOutcome) -> Message {
    Message::metadata(Answer { pushed, held: Duration::ZERO, number: 0 }.write(&Tail::Exponents(Vec::new())))
}
