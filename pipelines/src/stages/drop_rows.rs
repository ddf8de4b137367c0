//! A custom stage that drops rows by their raw values.

use arrow::array::{BooleanArray, RecordBatch};
use arrow::error::ArrowError;
use forebay_actors::{Fault, Outbox, Stage, StageCx};
use forebay_connectors::Rows;

/// Rejects the rows for which a mask is true, and counts them under the stage's name. A null in the mask keeps the row.
pub struct DropRows<F> {
    mask: F,
}

impl<F: Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + 'static> DropRows<F> {
    /// `mask` computes the mask, `[n]`, from the `n` rows of a batch.
    pub fn new(mask: F) -> Self {
        Self { mask }
    }
}

impl<F: Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + 'static> Stage for DropRows<F> {
    type In = Rows;
    type Out = Rows;

    fn describe(&self) -> String {
        "drops rows".into()
    }

    async fn on_batch(&mut self, rows: Rows, cx: &StageCx, out: &mut Outbox<Rows>) -> Result<(), Fault> {
        let mask = (self.mask)(&rows.batch)
            .map_err(|e| Fault::user(format!("stage `{}` cannot read its columns", cx.name())).because(e))?;
        out.send(rows.reject_where(&mask, cx.name(), cx)?).await
    }
}
