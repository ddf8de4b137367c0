//! Bad rows, which `parse` cannot use: it fails, counts them in the ledger, or also writes them to a file.
//!
//! The file has one JSON object per row: the reason, the place of the row, and its values as they were read. Writing blocks.

use std::collections::BTreeMap;

use arrow::array::{Array as _, ArrayRef, RecordBatch, StringArray};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use forebay_actors::{Fault, FaultKind, StageCx};
use forebay_connectors::{BadRowsFile, OnBadRow, Rows};

use super::column::NOT_FINITE;

/// The reason in the ledger of a row with another label.
pub(super) const NOT_BINARY: &str = "label is neither 0 nor 1";

/// The reason in the ledger of a row with a soft label that is no probability.
pub(super) const NOT_SOFT: &str = "label is not from 0 to 1";

/// The reason in the ledger of a row without a value of the label.
pub(super) const NO_LABEL: &str = "label is missing";

/// A value that its feature cannot take.
pub(super) struct WrongValue {
    /// The reason of its row in the ledger.
    pub(super) reason: &'static str,
    /// Names the column and the value.
    pub(super) detail: String,
}

/// Wrong values of an array, each with its place.
pub(super) type WrongValues = Vec<(usize, WrongValue)>;

/// The bad rows of one batch, each with the first reason that was found.
#[derive(Default)]
pub(super) struct BadRows(BTreeMap<usize, BadRow>);

struct BadRow {
    reason: &'static str,
    detail: String,
}

impl BadRows {
    /// Adds row `row`. The ledger counts it under `reason`; `detail` names the column and the value.
    pub(super) fn add(&mut self, row: usize, reason: &'static str, detail: impl FnOnce() -> String) {
        self.0.entry(row).or_insert_with(|| BadRow { reason, detail: detail() });
    }

    /// Adds a row for what is wrong with one of its values.
    pub(super) fn add_wrong(&mut self, row: usize, wrong: WrongValue) {
        self.add(row, wrong.reason, || wrong.detail);
    }

    /// Adds the bad rows of `others`; `row_of` gives the row of each of their numbers.
    pub(super) fn add_all(&mut self, others: Self, row_of: impl Fn(usize) -> usize) {
        for (other, bad) in others.0 {
            self.0.entry(row_of(other)).or_insert(bad);
        }
    }

    /// Counts the rows in the ledger of the run, by reason.
    pub(super) fn reject(&self, cx: &StageCx) {
        for row in self.0.values() {
            cx.ledger().reject(row.reason, 1);
        }
    }

    /// The numbers of the rows, ascending.
    pub(super) fn rows(&self) -> impl Iterator<Item = usize> {
        self.0.keys().copied()
    }

    /// For each of `rows` rows the reason, null if it is good.
    pub(super) fn reasons(&self, rows: usize) -> StringArray {
        match self.is_empty() {
            true => StringArray::new_null(rows),
            false => (0..rows).map(|row| self.0.get(&row).map(|bad| bad.reason)).collect(),
        }
    }

    /// The number of each row, ascending, and what is wrong with it.
    pub(super) fn into_details(self) -> Vec<(usize, String)> {
        self.0.into_iter().map(|(row, bad)| (row, bad.detail)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// For each of `rows` rows, whether it is good.
    pub(super) fn good(&self, rows: usize) -> Vec<bool> {
        let mut good = vec![true; rows];
        for &row in self.0.keys() {
            good[row] = false;
        }
        good
    }
}

/// Treats bad rows as the job says.
pub(super) struct Reject {
    policy: OnBadRow,
    /// Whether the job has several labels.
    several_labels: bool,
    file: Option<BadRowsFile>,
}

impl Reject {
    pub(super) fn new(policy: OnBadRow, several_labels: bool) -> Self {
        Self { policy, several_labels, file: None }
    }

    pub(super) fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        if let OnBadRow::WriteTo(folder) = &self.policy {
            let name = OnBadRow::file_of_stage(cx.name(), cx.replica());
            // All replicas but the first may be started while the run goes on.
            let open = if cx.replica() == 0 { BadRowsFile::open } else { BadRowsFile::open_late };
            self.file = Some(open(folder, &name)?);
        }
        Ok(())
    }

    /// Fails on the bad rows, or writes them to the file and counts rows that the file does not take, or does nothing. Awaits at most the
    /// store, to count the lines before a bad row.
    pub(super) async fn rows(&mut self, rows: &Rows, bad: &BadRows, cx: &StageCx) -> Result<(), Fault> {
        if let (OnBadRow::Fail, Some((&row, finding))) = (&self.policy, bad.0.first_key_value()) {
            let place = match &rows.places {
                Some(places) => places.place(row).await,
                None => format!("row {} of split {}", rows.lineage.row + row as u64, rows.lineage.split),
            };
            return Err(Fault::user(format!(
                "{place}: {}{} (data.on_bad_row = \"skip\" or {{ write_to = DIR }} goes on without such rows; in a command, --set \
                 data.on_bad_row=skip)",
                finding.detail,
                advice(finding.reason, self.several_labels)
            ))
            .hide_lineage()
            .kind(FaultKind::BadData));
        }
        if let Some(file) = self.file.as_mut().filter(|_| !bad.is_empty()) {
            let lines: Vec<Vec<u8>> = bad.0.iter().map(|(&row, finding)| line(rows, row, finding)).collect();
            cx.ledger().unwritten(file.append(&lines));
        }
        Ok(())
    }
}

/// The advice for a job that wants to use rows with this defect, instead of the advice to leave them out.
fn advice(reason: &str, several_labels: bool) -> &'static str {
    match reason {
        NOT_BINARY => {
            "; columns.label may say which values are 1, { column = ..., positive = \">= 4\" } or { column = ..., positive = [...] }"
        }
        NOT_SOFT => {
            "; soft labels are probabilities from 0 to 1, and there is no regression: scale the values, or replace `soft` by what makes \
             a row positive, { column = ..., positive = \">= 4\" }"
        }
        NO_LABEL if several_labels => {
            "; with { column = ..., mask_missing = true } in columns.label such a row still trains the other labels"
        }
        NOT_FINITE => "; `fill` of the dense feature replaces NaN, `clip` infinite values",
        _ => "",
    }
}

/// A bad row as a line of the file.
fn line(rows: &Rows, row: usize, finding: &BadRow) -> Vec<u8> {
    let mut line = serde_json::json!({
        "reason": finding.reason,
        "detail": finding.detail,
        "epoch": rows.lineage.epoch,
        "values": values(&rows.batch, row),
    });
    match &rows.places {
        Some(places) => {
            line["file"] = places.file().into();
            if let Some((unit, number)) = places.number(row) {
                line[unit] = number.into();
            }
        }
        None => {
            line["split"] = rows.lineage.split.into();
            line["row"] = (rows.lineage.row + row as u64).into();
        }
    }
    format!("{line}\n").into_bytes()
}

/// The values of a row as text. One that has none, such as a timestamp that is out of range, is replaced by the reason.
fn values(batch: &RecordBatch, row: usize) -> serde_json::Map<String, serde_json::Value> {
    let options = FormatOptions::default();
    let text = |array: &ArrayRef| ArrayFormatter::try_new(array.as_ref(), &options)?.value(row).try_to_string();
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let values = columns.map(|(field, array)| {
        let value = match array.is_null(row) {
            true => serde_json::Value::Null,
            false => text(array).unwrap_or_else(|e| e.to_string()).into(),
        };
        (field.name().clone(), value)
    });
    values.collect()
}
