//! `parse`: turns each batch of [`Rows`] into an [`ExampleBatch`]: labels, dense features and keys.
//!
//! Bad rows stop the run, or are left out and counted, as the job says. The stage blocks only to write them to a file.

mod bad_rows;
mod calendar;
mod column;
mod cross;
mod dense;
mod dense_options;
mod dense_vector;
mod label;
mod moments;
mod negatives;
mod slot;
mod type_check;
mod value_weights;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, ListArray, RecordBatch, new_null_array};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema};
use forebay_actors::{Fault, FaultKind, Lineage, Outbox, Stage, StageCx, counted};
use forebay_connectors::{OnBadRow, Rows, WindowMark, is_integer_of_text, is_number_of_text};
use forebay_job::{Columns, DenseColumn, SlotKind, Transform, check_key_spaces};
use forebay_ps::{SlotHasher, in_group};

use crate::column_type::{ColumnType, feature_types};
use crate::flow::{ExampleBatch, KeptRows};
use crate::labels_seen::LabelsSeen;
use crate::limit_warning::{self, LimitWarning};
use crate::scale_warning::{ScaleWarning, unscaled};
use bad_rows::{BadRows, Reject};
use column::BatchColumns;
use cross::CrossParser;
use dense::DenseParser;
pub use moments::moments_of_text;
use negatives::NegativeSample;
use slot::SlotParser;
use type_check::TypeCheck;

const SEVERAL_VALUES: &str = "several values in a slot that has one";

/// The `parse` stage.
pub struct Parse {
    columns: Columns,
    dense: Vec<DenseParser>,
    slots: Vec<SlotParser>,
    crosses: Vec<CrossParser>,
    /// The number of each slot's table; empty if there is one table.
    tables: Vec<usize>,
    /// Whether the key spaces are checked with the types of the next batch.
    check_types: bool,
    types: TypeCheck,
    reject: Reject,
    /// Columns that travel with the rows. `Some` in a prediction only.
    keep: Option<Vec<String>>,
    /// Columns that travel with the good rows of an evaluation.
    group_by: Vec<String>,
    negatives: Option<NegativeSample>,
    /// Whether the second label counts only in rows where the first label is positive.
    after_click: bool,
    /// In each of these slots a row may have at most one value.
    single: Vec<usize>,
    /// For each label, which of its positive values occurred.
    positives: Vec<u64>,
    labels: LabelsSeen,
    /// `Some` in a training only.
    scale_warning: Option<ScaleWarning>,
    limit_warning: LimitWarning,
}

impl Parse {
    /// Parses `columns`. Keys are hashed with `seed`, which the model folder stores.
    pub fn new(columns: &Columns, seed: u64, on_bad_row: OnBadRow) -> Self {
        Self {
            dense: columns.dense.iter().map(|c| DenseParser::new(c, columns)).collect(),
            slots: columns.slots.iter().map(|s| SlotParser::new(s, columns, seed)).collect(),
            crosses: columns.crosses.iter().map(|c| CrossParser::new(c, columns, seed)).collect(),
            tables: if columns.named_tables().is_empty() { Vec::new() } else { columns.slot_tables() },
            check_types: false,
            types: TypeCheck::default(),
            columns: columns.clone(),
            reject: Reject::new(on_bad_row, columns.label.len() > 1),
            keep: None,
            group_by: Vec::new(),
            negatives: None,
            after_click: false,
            single: Vec::new(),
            positives: vec![0; columns.label.len()],
            labels: LabelsSeen::default(),
            scale_warning: None,
            limit_warning: LimitWarning::default(),
        }
    }

    /// For a prediction: needs no label, and sends every row on with these columns. A bad row keeps its place, with the reason
    /// and meaningless features; the ledger does not count it as rejected.
    #[must_use]
    pub fn for_prediction(self, keep: Vec<String>) -> Self {
        Self { keep: Some(keep), ..self }
    }

    /// For an evaluation: sends these columns with every row that is not bad.
    #[must_use]
    pub fn for_evaluation(self, group_by: Vec<String>) -> Self {
        Self { group_by, ..self }
    }

    /// Leaves out all but this share of the rows with label 0, by random numbers from `seed`.
    #[must_use]
    pub fn keep_negatives(mut self, share: f64, seed: u64) -> Self {
        self.negatives = (share < 1.0).then(|| NegativeSample::new(share, seed));
        self
    }

    /// For two labels, a click and a conversion after it: the second becomes the product of both, a click with a conversion.
    #[must_use]
    pub fn conversions_after_clicks(self, after_click: bool) -> Self {
        Self { after_click, ..self }
    }

    /// For statistics: each dense feature has an indicator, and two more inputs with the rest that its values lose as `f32`. From number
    /// `from` on, the dense features are slots with quantiles, and faults say so.
    #[must_use]
    pub fn for_statistics(mut self, from: usize) -> Self {
        self.dense.iter_mut().for_each(DenseParser::with_rests);
        self.dense.iter_mut().skip(from).for_each(DenseParser::is_of_slot);
        self
    }

    /// Rows with a list of several values in one of these slots are bad rows.
    #[must_use]
    pub fn one_value_in(self, single: Vec<usize>) -> Self {
        Self { single, ..self }
    }

    /// Whether `batch` hashes the integers of slots, each integer of a batch once, instead of this stage for each row. This stage always
    /// hashes slots of a cross, of a shared key space or of one of several tables. The batches do not depend on the choice. Default false.
    #[must_use]
    pub fn hashing_late(mut self, late: bool) -> Self {
        let crossed: HashSet<usize> =
            self.columns.crosses.iter().flat_map(|cross| cross.slots(&self.columns)).collect();
        let spaces = self.columns.key_spaces();
        let mut slots_of: HashMap<usize, usize> = HashMap::new();
        spaces.iter().for_each(|space| *slots_of.entry(*space).or_default() += 1);
        for (slot, parser) in self.slots.iter_mut().enumerate() {
            let is_alone = slots_of[&spaces[slot]] == 1;
            if late && self.tables.is_empty() && !crossed.contains(&slot) && is_alone {
                parser.hash_late();
            }
        }
        self
    }

    /// For a training: refuses slots without a kind that share a key space with slots of another kind, once the types of the
    /// rows say so. (A model that was trained on such slots can still be used.)
    #[must_use]
    pub fn checking_key_spaces(self) -> Self {
        Self { check_types: true, ..self }
    }

    /// At the end, tells `labels` which positive values occurred.
    #[must_use]
    pub fn noting(self, labels: LabelsSeen) -> Self {
        Self { labels, ..self }
    }

    /// Warns once about dense features that need a scale.
    #[must_use]
    pub fn warning_of_scales(self, warning: ScaleWarning) -> Self {
        Self { scale_warning: Some(warning), ..self }
    }

    /// Warns once about dense features most of whose values are beyond the limit of their scale. Without it, each `Parse` warns once.
    #[must_use]
    pub fn warning_of_limits(self, warning: LimitWarning) -> Self {
        Self { limit_warning: warning, ..self }
    }

    /// Refuses rows whose schema `check` refuses. It is called when the schema changes.
    #[must_use]
    pub fn checking_types(self, check: impl Fn(&Schema) -> Result<(), Fault> + Send + Sync + 'static) -> Self {
        Self { types: TypeCheck::new(Box::new(check)), ..self }
    }

    /// Parses every row and adds the bad ones to `bad`. Values of bad rows are meaningless.
    fn examples(&mut self, rows: &Rows, bad: &mut BadRows) -> Result<ExampleBatch, Fault> {
        if std::mem::take(&mut self.check_types) {
            check_types(&self.columns, &rows.batch)?;
        }
        self.types.check(rows.batch.schema())?;
        let n = rows.batch.num_rows();
        let there = BatchColumns::of(&rows.batch);
        let labels = match self.keep {
            None => self.labels(&there, n, bad)?,
            Some(_) => vec![0.0; n * self.columns.label.len()],
        };
        let weights = match &self.columns.weight {
            Some(weight) if self.keep.is_none() => label::weights(weight, there.column(weight)?, bad)?,
            _ => Vec::new(),
        };
        let mut dense = Vec::with_capacity(n * self.columns.dense_inputs());
        let warning = self.scale_warning.as_ref().filter(|warning| warning.is_pending());
        let is_first = warning.is_some_and(|warning| warning.is_first(n));
        let (mut found, mut beyond) = (Vec::new(), Vec::new());
        let is_limit_checked = self.limit_warning.is_first(n);
        for (spec, parser) in self.columns.dense.iter().zip(&self.dense) {
            let at = spec.at_column().map(|name| there.column(name)).transpose()?;
            let from = dense.len();
            parser.parse(&spec.column, &dense_column(&there, spec)?, at, &mut dense, bad)?;
            // Inputs with a limit have a warning of their own.
            if warning.is_some() && spec.limit.is_none() {
                found.extend(unscaled(spec, &dense[from..], is_first));
            }
            if is_limit_checked && limit_warning::is_beyond(spec, &dense[from..from + n]) {
                beyond.push(spec);
            }
        }
        if let Some(warning) = warning {
            warning.warn(&found, n);
        }
        limit_warning::warn(&beyond, n);
        let mut slots = Vec::with_capacity(self.columns.slot_count());
        for (spec, parser) in self.columns.slots.iter().zip(&mut self.slots) {
            let of_slot = |name: &String| slot_column(&there, name, &self.columns);
            let (values, weights) = (of_slot(&spec.column)?, spec.weights.as_ref().map(of_slot).transpose()?);
            slots.push(parser.parse(&spec.column, &values, weights.as_ref(), bad)?);
        }
        for &slot in &self.single {
            let Some(offsets) = slots[slot].offsets() else { continue };
            for (row, pair) in offsets.windows(2).enumerate().filter(|(_, pair)| pair[1] - pair[0] > 1) {
                bad.add(row, SEVERAL_VALUES, || {
                    let (name, count) = (&self.columns.slots[slot].column, pair[1] - pair[0]);
                    format!("column `{name}` has {count} values, expected one in a target of model.attention and in model.item_id")
                });
            }
        }
        for cross in &self.crosses {
            let keys = cross.parse(&slots, bad);
            slots.push(keys);
        }
        // Done after the crosses, because their keys do not depend on the tables of their slots.
        for (keys, &table) in slots.iter_mut().zip(&self.tables) {
            keys.all_mut().iter_mut().for_each(|key| *key = in_group(*key, table as u8));
        }
        Ok(ExampleBatch {
            lineage: rows.lineage.clone(),
            window: rows.window,
            rejected: rows.rejected,
            rows: n,
            labels,
            weights,
            dense,
            slots,
            kept: None,
        })
    }

    /// The labels, `[t × n]`, of `rows` rows.
    fn labels(&mut self, there: &BatchColumns, rows: usize, bad: &mut BadRows) -> Result<Vec<f32>, Fault> {
        let mut labels = Vec::new();
        for (label, positives) in self.columns.label.iter().zip(&mut self.positives) {
            let of_label = label::parse(label, there.column(&label.column)?, positives, bad)?;
            if labels.is_empty() { labels = of_label } else { labels.extend_from_slice(&of_label) }
        }
        if self.after_click {
            let (clicks, conversions) = labels.split_at_mut(rows);
            label::conversions_after_clicks(clicks, conversions);
        }
        label::refuse_rows_without_any(&self.columns.label, &labels, rows, bad);
        Ok(labels)
    }

    /// The examples of rows outside of a pipeline, and what is wrong with the bad ones, whose features are meaningless.
    ///
    /// # Errors
    /// A user fault if a column is missing or has a type that cannot be parsed.
    pub fn examples_of(&mut self, batch: RecordBatch) -> Result<(ExampleBatch, Vec<(usize, String)>), Fault> {
        let rows =
            Rows { batch, lineage: Lineage::default(), window: WindowMark::default(), rejected: 0, places: None };
        let mut bad = BadRows::default();
        let mut examples = self.examples(&rows, &mut bad)?;
        examples.clear_dense(bad.rows());
        Ok((examples, bad.into_details()))
    }

    /// The columns that travel with the rows of an evaluation, all of them good.
    fn grouped(&self, rows: &Rows) -> Result<Option<KeptRows>, Fault> {
        match self.group_by.as_slice() {
            [] => Ok(None),
            columns => Self::kept(columns, rows, &BadRows::default()).map(Some),
        }
    }

    /// The columns that travel with the rows of a prediction.
    fn kept(keep: &[String], rows: &Rows, bad: &BadRows) -> Result<KeptRows, Fault> {
        let there = BatchColumns::of(&rows.batch);
        let columns = keep.iter().map(|name| Ok((name.as_str(), there.column(name)?)));
        KeptRows::new(columns.collect::<Result<_, Fault>>()?, bad.reasons(rows.batch.num_rows()))
    }
}

/// The fault of columns that are missing or have a wrong type, with the name of the rows' file, if they are from one. A fault about the
/// rows of `data.eval` is not about this file.
fn in_file(fault: Fault, rows: &Rows) -> Fault {
    match &rows.places {
        Some(places) if !fault.hides_lineage() => fault.context(format!("`{}`", places.file())).hide_lineage(),
        _ => fault,
    }
}

/// The column of a dense feature. Integers of text become numbers, as without a slot of the kind `int` on the same column, so that the
/// transform `auto` takes no logarithm.
fn dense_column(there: &BatchColumns, feature: &DenseColumn) -> Result<ArrayRef, Fault> {
    let array = there.column(&feature.column)?;
    let are_integers = matches!(array.data_type(), DataType::Int64 | DataType::List(_));
    if feature.transform != Transform::Auto || !are_integers || !is_number_of_text(there.field(&feature.column)?) {
        return Ok(Arc::clone(array));
    }
    let kind = match array.data_type() {
        DataType::List(item) => DataType::List(Arc::new(item.as_ref().clone().with_data_type(DataType::Float64))),
        _ => DataType::Float64,
    };
    cast(array, &kind).map_err(|e| Fault::internal("integers of text are no numbers").because(e))
}

/// The column of a slot or of its weights. A column of nulls alone has missing lists, if it had lists in the training of a model. Text of
/// integers becomes the integers; those above `i64::MAX` wrap.
fn slot_column(there: &BatchColumns, name: &str, columns: &Columns) -> Result<ArrayRef, Fault> {
    let array = there.column(name)?;
    if is_integer_of_text(there.field(name)?) {
        return integers_of_text(array);
    }
    match *array.data_type() == DataType::Null && columns.lists.iter().any(|list| list == name) {
        true => Ok(new_null_array(&DataType::new_list(DataType::Null, true), array.len())),
        false => Ok(Arc::clone(array)),
    }
}

fn integers_of_text(array: &ArrayRef) -> Result<ArrayRef, Fault> {
    if let Some(lists) = array.as_list_opt::<i32>() {
        let item = Arc::new(Field::new_list_field(DataType::Int64, true));
        let (values, nulls) = (integers_of_text(lists.values())?, lists.nulls().cloned());
        let lists = ListArray::try_new(item, lists.offsets().clone(), values, nulls);
        return Ok(Arc::new(lists.map_err(|e| Fault::internal("integers of text make no lists").because(e))?));
    }
    let Some(texts) = array.as_string_opt::<i32>() else {
        return Err(Fault::internal(format!("text of integers has the type {}", array.data_type())));
    };
    let integer = |text: &str| text.parse::<i64>().or_else(|_| text.parse::<u64>().map(|value| value as i64)).ok();
    Ok(Arc::new(texts.iter().map(|text| integer(text?)).collect::<Int64Array>()))
}

/// The key of a missing value in each slot, as [`Parse`] makes it; `None` for crosses, which are made of the keys of slots.
pub fn missing_keys(columns: &Columns, seed: u64) -> Vec<Option<u64>> {
    let several = !columns.named_tables().is_empty();
    let in_table = |(key, table): (u64, usize)| if several { in_group(key, table as u8) } else { key };
    let of_slots = columns.slots.iter().map(|slot| SlotHasher::new(slot.key_space(), seed).missing());
    let of_slots = of_slots.zip(columns.slot_tables()).map(|missing| Some(in_table(missing)));
    of_slots.chain(columns.crosses.iter().map(|_| None)).collect()
}

/// Fails if a column is missing in `batch`, or has a type that cannot be parsed.
pub fn check_columns(columns: &Columns, batch: &RecordBatch) -> Result<(), Fault> {
    let batch = batch.slice(0, 0);
    let none = Rows { batch, lineage: Lineage::default(), window: WindowMark::default(), rejected: 0, places: None };
    Parse::new(columns, 0, OnBadRow::Fail).examples(&none, &mut BadRows::default()).map(drop)
}

/// Checks the key spaces with the kinds that slots of the kind `auto` have in rows of these types.
fn check_types(columns: &Columns, batch: &RecordBatch) -> Result<(), Fault> {
    let types = feature_types(columns, batch.schema_ref());
    check_key_spaces(columns, |slot| match (slot.kind, types.get(&slot.column)) {
        (SlotKind::Auto, Some(ColumnType::Text)) => SlotKind::String,
        (SlotKind::Auto, Some(ColumnType::Number)) | (SlotKind::Auto, None) => SlotKind::Auto,
        (SlotKind::Auto, Some(_)) => SlotKind::Int,
        (kind, _) => kind,
    })
    .map_err(|fault| fault.kind(FaultKind::BadData))
}

impl Stage for Parse {
    type In = Rows;
    type Out = ExampleBatch;

    fn describe(&self) -> String {
        format!("{} dense, {}", self.columns.dense_inputs(), counted(self.columns.slot_count(), "slot"))
    }

    async fn open(&mut self, cx: &StageCx) -> Result<(), Fault> {
        self.reject.open(cx)
    }

    async fn on_batch(&mut self, rows: Rows, cx: &StageCx, out: &mut Outbox<ExampleBatch>) -> Result<(), Fault> {
        let mut bad = BadRows::default();
        let mut examples = self.examples(&rows, &mut bad).map_err(|fault| in_file(fault, &rows))?;
        self.reject.rows(&rows, &bad, cx).await?;
        let good = self.negatives.as_ref().map(|_| bad.good(rows.batch.num_rows()));
        if let Some(keep) = &self.keep {
            examples.clear_dense(bad.rows());
            examples.kept = Some(Self::kept(keep, &rows, &bad)?);
        } else if !bad.is_empty() {
            bad.reject(cx);
            let good = BooleanArray::from(bad.good(rows.batch.num_rows()));
            let batch = filter_record_batch(&rows.batch, &good)
                .map_err(|e| Fault::internal("bad rows could not be taken out").because(e))?;
            let rejected = rows.rejected.saturating_add(bad.count());
            let rows = Rows { batch, rejected, ..rows };
            examples = self.examples(&rows, &mut BadRows::default())?;
            examples.kept = self.grouped(&rows)?;
        } else {
            examples.kept = self.grouped(&rows)?;
        }
        if let (Some(negatives), Some(good)) = (&self.negatives, good) {
            examples = negatives.sample(examples, &good, cx);
        }
        // An empty batch may carry a count of rejected rows or the end of its window.
        let tells = examples.rows > 0 || examples.rejected > 0 || examples.window.closes;
        if tells { out.send(examples).await } else { Ok(()) }
    }

    async fn finish(&mut self, _cx: &StageCx, _out: &mut Outbox<ExampleBatch>) -> Result<(), Fault> {
        self.positives.iter().enumerate().for_each(|(label, &positives)| self.labels.add_positives(label, positives));
        Ok(())
    }
}
