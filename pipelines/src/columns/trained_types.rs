//! The types of the feature columns of a model in training, and whether other rows can be read in the same way.
//!
//! A dense feature without a transform and a slot without a kind are read by the type of their column: `log1p` and integers, for instance.
//! A model has the types of its training, so rows of other types are read like the rows of the training, or refused. Otherwise their scores
//! would be wrong without an error.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::Schema;
use forebay_actors::{Fault, FaultKind};
use forebay_batches::{ColumnType, feature_types};
use forebay_connectors::{Format, ValueKind};
use forebay_job::{Columns, DenseColumn, Job, SlotKind, Transform};

use crate::metrics::training_summary::TrainingSummary;

/// The types of feature columns in training, by name, without columns whose types are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrainedTypes(pub(crate) BTreeMap<String, ColumnType>);

/// The job of a model, with columns that are read as in its training.
pub(crate) fn job_as_trained(job: &Job, training: Option<&TrainingSummary>) -> Job {
    let types = TrainedTypes::of(training);
    let mut job = types.pinned(job);
    types.tell_lists(training.map_or(&BTreeSet::new(), |training| &training.lists), &mut job.columns);
    job
}

impl TrainedTypes {
    pub(crate) fn of(training: Option<&TrainingSummary>) -> Self {
        Self(training.map(|training| training.types.clone()).unwrap_or_default())
    }

    /// Makes columns that have only nulls be read as in training, where `lists` had lists and the other columns of these types had none.
    pub(crate) fn tell_lists(&self, lists: &BTreeSet<String>, columns: &mut Columns) {
        columns.single = self.0.keys().filter(|name| !lists.contains(*name)).cloned().collect();
        columns.lists = lists.iter().cloned().collect();
    }

    /// The types that columns of this schema have.
    pub(crate) fn in_rows(columns: &Columns, schema: &Schema) -> Self {
        Self(feature_types(columns, schema))
    }

    /// The types that columns have in files of a format that does not tell them.
    ///
    /// # Errors
    /// A user fault if a column is used as values of several kinds.
    pub(crate) fn in_text(columns: &Columns, format: Format) -> Result<Self, Fault> {
        let kind = |kind| match kind {
            ValueKind::Number => ColumnType::Number,
            ValueKind::Integer | ValueKind::IntegerText => ColumnType::Integer,
            ValueKind::Hex | ValueKind::HexText | ValueKind::Text => ColumnType::Text,
        };
        let found = columns.in_files(format)?;
        Ok(Self(found.into_iter().map(|column| (column.name, kind(column.kind))).collect()))
    }

    /// The job with columns that are read as in training, for any types in the file: it has a transform or a kind where `job` has `auto`.
    pub(crate) fn pinned(&self, job: &Job) -> Job {
        let mut job = job.clone();
        for dense in &mut job.columns.dense {
            dense.transform = self.transform_of(dense);
        }
        for slot in job.columns.slots.iter_mut().filter(|slot| slot.kind == SlotKind::Auto) {
            slot.kind = match self.0.get(&slot.column) {
                Some(ColumnType::Integer | ColumnType::TextInteger | ColumnType::Boolean) => SlotKind::Int,
                Some(ColumnType::Text) => SlotKind::String,
                // Moments have no kind of their own.
                _ => SlotKind::Auto,
            };
        }
        job
    }

    /// The transform of a dense feature in rows of these types; `auto` if its type is not known, or not one of numbers.
    pub(crate) fn transform_of(&self, dense: &DenseColumn) -> Transform {
        match (dense.transform, self.0.get(&dense.column)) {
            (Transform::Auto, Some(ColumnType::Integer)) => Transform::Log1p,
            (Transform::Auto, Some(ColumnType::Boolean | ColumnType::TextInteger | ColumnType::Number)) => {
                Transform::None
            }
            (transform, _) => transform,
        }
    }

    /// Whether the statistics of dense features describe values of the transform that rows of these types get. Statistics that do not say
    /// what `auto` meant fit all.
    ///
    /// # Errors
    /// A user fault that names the first column that does not fit.
    pub(crate) fn check_statistics(&self, columns: &Columns) -> Result<(), Fault> {
        for dense in columns.dense.iter().filter(|dense| dense.scale.is_some()) {
            let Some(statistics) = columns.statistics_of(&dense.column) else { continue };
            let (described, here) = (statistics.transform, self.transform_of(dense));
            if described == here || [described, here].contains(&Transform::Auto) {
                continue;
            }
            let name = &dense.column;
            let [described, here] = [described, here].map(Transform::name);
            return Err(Fault::user(format!(
                "columns.statistics.{name} was computed with the transform {described}, and `auto` means {here} for the values of \
                 `{name}` in these rows: `forebay data stats JOB --write` computes the statistics of these rows, or set \
                 transform = \"{described}\" in columns.dense"
            ))
            .kind(FaultKind::BadData));
        }
        Ok(())
    }

    /// Whether `columns` of the types `found` have the meaning that they had in training. A column whose type is unknown on either side
    /// fits.
    ///
    /// # Errors
    /// A user fault that names the first column that does not fit.
    pub(crate) fn check(&self, columns: &Columns, found: &Self) -> Result<(), Fault> {
        let dense = columns.dense.iter().map(|dense| (&dense.column, dense_meaning(dense.transform)));
        let slots = columns.slots.iter().map(|slot| (&slot.column, slot_meaning(slot.kind)));
        for (name, meaning) in dense.chain(slots) {
            let (Some(&trained), Some(&found)) = (self.0.get(name), found.0.get(name)) else { continue };
            let differs = match meaning {
                Meaning::OfAnyType => None,
                Meaning::Number => {
                    (is_count(trained) != is_count(found)).then_some("its values would be transformed in another way")
                }
                // The parser refuses such a slot, and says what to do about ids that were written as numbers.
                Meaning::Category if trained == ColumnType::Number => None,
                Meaning::Category => (category(trained) != category(found)).then_some("its keys would be others"),
            };
            if let Some(otherwise) = differs {
                return Err(Fault::user(format!(
                    "column `{name}` has {found} in these rows, and the model was trained on {trained}, so {otherwise}: write it as {}, \
                     or train on rows like these",
                    written(trained)
                ))
                .kind(FaultKind::OtherType));
            }
        }
        Ok(())
    }
}

/// What the type of a column decides.
enum Meaning {
    /// Nothing: the job says how it is read.
    OfAnyType,
    /// Whether a dense feature is transformed.
    Number,
    /// How a value of a slot is hashed.
    Category,
}

fn dense_meaning(transform: Transform) -> Meaning {
    if transform == Transform::Auto { Meaning::Number } else { Meaning::OfAnyType }
}

fn slot_meaning(kind: SlotKind) -> Meaning {
    match kind {
        SlotKind::Auto | SlotKind::Int | SlotKind::String => Meaning::Category,
        SlotKind::Hex | SlotKind::LogBucket | SlotKind::Boundaries | SlotKind::Hour | SlotKind::Weekday => {
            Meaning::OfAnyType
        }
    }
}

/// Whether the transform `auto` takes the logarithm.
fn is_count(kind: ColumnType) -> bool {
    kind == ColumnType::Integer
}

/// One type for all types whose values have the same keys: true is 1.
fn category(kind: ColumnType) -> ColumnType {
    if matches!(kind, ColumnType::Boolean | ColumnType::TextInteger) { ColumnType::Integer } else { kind }
}

/// The type in the words of Spark and Hive.
fn written(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Boolean => "boolean",
        ColumnType::Integer => "bigint",
        ColumnType::TextInteger => "CSV or JSON lines",
        ColumnType::Number => "double",
        ColumnType::Text => "string",
        ColumnType::Date => "date",
        ColumnType::Timestamp => "timestamp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(text: &str) -> Columns {
        Job::from_toml(&format!("[columns]\n{text}"), &[]).unwrap().columns
    }

    fn types(of: &[(&str, ColumnType)]) -> TrainedTypes {
        TrainedTypes(of.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect())
    }

    #[test]
    fn a_type_that_changes_what_is_read_is_refused_and_others_are_not() {
        use ColumnType::{Boolean, Date, Integer, Number, Text, TextInteger, Timestamp};
        let columns = columns(
            "dense = ['d', { column = 'log', transform = 'log1p' }]\n\
             slots = ['s', { column = 'int', kind = 'int' }, { column = 'hex', kind = 'hex' }, { column = 'hour', kind = 'hour' }, \
             { column = 'b', kind = 'log_bucket' }, { column = 'text', kind = 'string' }]",
        );
        let check = |name, trained, found| types(&[(name, trained)]).check(&columns, &types(&[(name, found)]));
        for (name, trained, found, fits) in [
            ("d", Integer, Integer, true),
            ("d", Integer, Number, false),
            ("d", Number, Integer, false),
            ("d", Number, Boolean, true),
            ("d", Integer, TextInteger, false),
            ("d", TextInteger, Integer, false),
            ("s", TextInteger, Integer, true),
            ("log", Integer, Number, true),
            ("s", Integer, Boolean, true),
            ("s", Integer, Text, false),
            ("s", Text, Integer, false),
            ("s", Date, Timestamp, false),
            ("s", Integer, Timestamp, false),
            ("s", Integer, Number, false),
            ("s", Number, Integer, true),
            ("int", Date, Integer, false),
            ("int", Boolean, Integer, true),
            ("hex", Text, Integer, true),
            ("hour", Text, Timestamp, true),
            ("b", Integer, Number, true),
            ("text", Text, Text, true),
            ("elsewhere", Text, Integer, true),
        ] {
            let said = check(name, trained, found);
            assert_eq!(said.is_ok(), fits, "{name}: {trained} and {found}");
            if let Err(said) = said {
                let said = said.to_string();
                let words =
                    format!("column `{name}` has {found} in these rows, and the model was trained on {trained}");
                assert!(said.contains(&words) && said.contains(written(trained)), "{said}");
            }
        }
        assert!(TrainedTypes::default().check(&columns, &types(&[("s", Text)])).is_ok(), "a model without types");
        assert!(
            types(&[("s", Text)]).check(&columns, &TrainedTypes::default()).is_ok(),
            "a column that all files lack"
        );
    }

    /// A bug: statistics of CSV, where `auto` is `none`, scaled the logarithms of integers of Parquet.
    #[test]
    fn statistics_of_another_transform_than_auto_means_are_refused() {
        use ColumnType::{Boolean, Integer, Number, Text, TextInteger};
        let check = |transform: &str, kind| {
            let columns = columns(&format!(
                "dense = [{{ column = 'x', scale = 'z_score' }}]\nslots = []\n\
                 statistics = {{ x = {{ mean = 1, std = 2, min = 0, max = 9, transform = '{transform}' }} }}"
            ));
            types(&[("x", kind)]).check_statistics(&columns).map_err(|fault| fault.to_string())
        };
        for kind in [Boolean, TextInteger, Number] {
            assert!(check("none", kind).is_ok() && check("auto", kind).is_ok(), "{kind}");
            let said = check("log1p", kind).unwrap_err();
            assert!(said.contains("columns.statistics.x was computed with the transform log1p"), "{said}");
            assert!(said.contains("`auto` means none") && said.contains("transform = \"log1p\""), "{said}");
        }
        assert!(check("log1p", Integer).is_ok() && check("auto", Integer).is_ok());
        assert!(check("none", Integer).unwrap_err().contains("`auto` means log1p"));
        assert!(check("none", Text).is_ok(), "another fault says that it is no number");
        let named = columns(
            "dense = [{ column = 'x', transform = 'none', scale = 'min_max' }]\nslots = []\n\
             statistics = { x = { mean = 1, std = 2, min = 0, max = 9, transform = 'none' } }",
        );
        types(&[("x", Integer)]).check_statistics(&named).unwrap();
    }

    #[test]
    fn what_the_job_leaves_open_is_read_as_in_training() {
        let columns = columns(
            "dense = ['i', 'n', 'new', { column = 'i2', transform = 'none' }]\n\
             slots = ['int', 'bool', 'text', 'day', 'other', { column = 'text', kind = 'hex', key_space = 'h' }]",
        );
        let job = Job { columns, ..Job::default() };
        let trained = types(&[
            ("i", ColumnType::Integer),
            ("i2", ColumnType::Integer),
            ("n", ColumnType::Number),
            ("int", ColumnType::Integer),
            ("bool", ColumnType::Boolean),
            ("text", ColumnType::Text),
            ("day", ColumnType::Date),
        ]);
        let pinned = trained.pinned(&job);
        let transforms: Vec<Transform> = pinned.columns.dense.iter().map(|dense| dense.transform).collect();
        assert_eq!(transforms, [Transform::Log1p, Transform::None, Transform::Auto, Transform::None]);
        let kinds: Vec<SlotKind> = pinned.columns.slots.iter().map(|slot| slot.kind).collect();
        use SlotKind::{Auto, Hex, Int, String};
        assert_eq!(kinds, [Int, Int, String, Auto, Auto, Hex]);
        assert_eq!(TrainedTypes::default().pinned(&job).columns, job.columns);
        let in_csv = TrainedTypes::in_text(&pinned.columns, Format::Csv);
        assert!(in_csv.is_err(), "`text` is text and hexadecimal digits");
    }
}
