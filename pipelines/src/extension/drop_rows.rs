//! A custom stage that drops rows by their raw values.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::array::{BooleanArray, RecordBatch};
use arrow::error::ArrowError;
use forebay_actors::{Fault, FaultKind, Outbox, Stage, StageCx};
use forebay_base::panic_message;
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

/// The mask of the stage `name`. `rows["I3"]` panics if there is no such column, so a panic is a user fault that lists the columns.
///
/// # Errors
/// A user fault if the mask cannot be computed.
fn mask_of<F>(mask: &F, rows: &RecordBatch, name: &str) -> Result<BooleanArray, Fault>
where
    F: Fn(&RecordBatch) -> Result<BooleanArray, ArrowError>,
{
    let there = || {
        let names: Vec<&str> = rows.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
        format!("its rows have {}; a column that only a stage needs must be in columns.extra", names.join(", "))
    };
    match catch_unwind(AssertUnwindSafe(|| mask(rows))) {
        Ok(Ok(mask)) => Ok(mask),
        Ok(Err(e)) => Err(Fault::user(format!("stage `{name}` cannot read its columns ({})", there())).because(e)),
        Err(panic) => {
            let said = panic_message(&*panic);
            let what =
                format!("the mask of stage `{name}` panicked, perhaps for lack of a column ({}): {said}", there());
            Err(Fault::user(what).kind(FaultKind::Panic))
        }
    }
}

impl<F: Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + 'static> Stage for DropRows<F> {
    type In = Rows;
    type Out = Rows;

    fn describe(&self) -> String {
        "drops rows".into()
    }

    async fn on_batch(&mut self, rows: Rows, cx: &StageCx, out: &mut Outbox<Rows>) -> Result<(), Fault> {
        let mask = mask_of(&self.mask, &rows.batch, cx.name())?;
        out.send(rows.reject_where(&mask, cx.name(), cx)?).await
    }
}
