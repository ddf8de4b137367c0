//! The types of the feature columns of a run. Its first rows determine them, its model and its checkpoints store them, and later rows must
//! have the same types.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::Schema;
use forebay_actors::Fault;
use forebay_batches::{ColumnType, list_columns};
use forebay_connectors::Format;
use forebay_job::{Columns, Job};

use super::trained_types::TrainedTypes;
use crate::metrics::training_summary::TrainingSummary;

/// The types of one training run. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct RunTypes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    found: OnceLock<RowTypes>,
    /// The types of the model that the run continues from.
    before: OnceLock<RowTypes>,
    /// The types of the rows of `data.eval`.
    eval: OnceLock<FileTypes>,
}

/// The types of the columns of rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowTypes {
    pub(crate) types: TrainedTypes,
    /// The columns whose values are lists.
    pub(crate) lists: BTreeSet<String>,
}

/// The types of the columns of files.
pub(crate) struct FileTypes {
    pub(crate) format: Format,
    pub(crate) rows: RowTypes,
    /// Columns that are folders `column=value`.
    pub(crate) folders: Vec<String>,
}

impl FileTypes {
    /// The types that the columns have when a model of these types reads the files. The name of a folder is text if it was in training.
    fn read_by(&self, trained: &TrainedTypes) -> TrainedTypes {
        let mut types = self.rows.types.clone();
        let was_text = |folder: &&String| trained.0.get(*folder) == Some(&ColumnType::Text);
        for folder in self.folders.iter().filter(was_text) {
            types.0.insert(folder.clone(), ColumnType::Text);
        }
        types
    }
}

impl RowTypes {
    pub(crate) fn of(job: &Job, schema: &Schema) -> Self {
        let columns = &job.columns;
        Self { types: TrainedTypes::in_rows(columns, schema), lists: list_columns(columns, schema) }
    }

    /// The types that a model was trained on.
    pub(crate) fn of_training(training: Option<&TrainingSummary>) -> Self {
        let lists = training.map(|training| training.lists.clone()).unwrap_or_default();
        Self { types: TrainedTypes::of(training), lists }
    }

    /// Makes columns that have only nulls be read as in these rows.
    pub(crate) fn tell_lists(&self, columns: &mut Columns) {
        self.types.tell_lists(&self.lists, columns);
    }
}

impl RunTypes {
    /// The run continues from a model of these types. Called before it starts.
    pub(crate) fn continues_from(&self, before: RowTypes) {
        let _ = self.0.before.set(before);
    }

    /// The model will be evaluated on such rows. Called before the run starts.
    pub(crate) fn evaluated_on(&self, eval: FileTypes) {
        let _ = self.0.eval.set(eval);
    }

    /// Rows of the run of `job` have these types: rows that it reads, or rows before the checkpoint that it continues from.
    ///
    /// # Errors
    /// A user fault that names a column. Its type differs from earlier rows or from the model that the run continues from; or the
    /// statistics of the job are of another transform; or the rows of `data.eval` cannot be read like these rows.
    pub(crate) fn add(&self, job: &Job, rows: RowTypes) -> Result<(), Fault> {
        let columns = &job.columns;
        rows.types.check_statistics(columns)?;
        if let Some(found) = self.0.found.get() {
            return found.types.check(columns, &rows.types);
        }
        if let (Some(before), Some(from)) = (self.0.before.get(), &job.train.from) {
            let cannot = |fault: Fault| fault.context(format!("the run cannot continue from the model {from}"));
            before.types.check(columns, &rows.types).map_err(cannot)?;
        }
        if let Some(eval) = self.0.eval.get() {
            let pinned = rows.types.pinned(job).columns;
            let cannot = |fault| not_evaluated(fault).hide_lineage();
            // In text files, columns that are read as in training have other types than when the files were opened before the run.
            let eval = match eval.format.is_untyped() {
                true => TrainedTypes::in_text(&pinned, eval.format).map_err(cannot)?,
                false => eval.read_by(&rows.types),
            };
            rows.types.check(&pinned, &eval).map_err(cannot)?;
        }
        let types = rows.types.clone();
        // Another replica may have been first.
        self.0.found.get_or_init(|| rows).types.check(columns, &types)
    }

    /// The types of the first rows; for columns that these rows lack, the types of the model before, and its lists. `None`: they are not
    /// known yet.
    pub(crate) fn get(&self) -> Option<RowTypes> {
        let mut found = self.0.found.get()?.clone();
        if let Some(before) = self.0.before.get() {
            for (name, kind) in &before.types.0 {
                found.types.0.entry(name.clone()).or_insert(*kind);
            }
            found.lists.extend(before.lists.iter().cloned());
        }
        Some(found)
    }
}

/// The fault of rows of `data.eval` that the model of a run cannot read, before anything is trained.
pub(crate) fn not_evaluated(fault: Fault) -> Fault {
    fault.context("nothing is trained, because the model could not be evaluated on data.eval")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_lists_stays_one_after_a_day_without_its_values() {
        let rows = |columns: &[(&str, ColumnType)], lists: &[&str]| RowTypes {
            types: TrainedTypes(columns.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect()),
            lists: lists.iter().map(|&name| name.to_owned()).collect(),
        };
        let (known, types) = (ColumnType::Integer, RunTypes::default());
        types.continues_from(rows(&[("a", known), ("b", known), ("c", known)], &["a", "b"]));
        assert!(types.get().is_none());
        types.add(&Job::default(), rows(&[("b", known), ("c", known), ("d", known)], &["d"])).unwrap();
        let found = types.get().unwrap();
        assert_eq!(found.types.0.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(found.lists.iter().collect::<Vec<_>>(), ["a", "b", "d"]);
        let mut columns = Columns::default();
        found.tell_lists(&mut columns);
        assert_eq!(columns.single, ["c"]);
        assert_eq!(columns.lists, ["a", "b", "d"]);
    }
}
