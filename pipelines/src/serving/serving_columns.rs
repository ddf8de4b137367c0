//! The columns that a request must have: their names, and the types that they had in training.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use arrow::datatypes::{DataType, Field, Schema};
use forebay_base::nearest;
use forebay_batches::ColumnType;
use forebay_job::{Columns, Slot, SlotKind};

/// The most values of a request: columns times rows, given or not.
pub(super) const MOST_VALUES: usize = 1 << 20;

/// The most elements of the lists of a request: 1,000 rows with histories of 4,000.
pub(super) const MOST_ELEMENTS: usize = 1 << 22;

/// The most bytes of the text of a request.
pub(super) const MOST_TEXT: usize = 64 << 20;

/// The feature columns of a model.
#[derive(Clone)]
pub(super) struct ServingColumns {
    /// In the order of dense features and slots.
    pub(super) columns: Vec<ServingColumn>,
    by_name: HashMap<String, usize>,
    /// Rows of the largest request.
    pub(super) most_rows: usize,
}

/// A column that the model reads.
#[derive(Clone)]
pub(super) struct ServingColumn {
    pub(super) name: String,
    /// May be absent from all rows.
    pub(super) optional: bool,
    /// The type that values in JSON become; `None`: their own.
    pub(super) kind: Option<ColumnType>,
    /// The type in training, or one that the slot's kind takes; `None`: not known.
    told: Option<ColumnType>,
    /// Its values were lists in training, or are cut as lists.
    pub(super) lists: bool,
    /// Its values are hexadecimal digits, or the integers that they stand for.
    pub(super) hex: bool,
    /// It is a time with a unit, and nothing else: a number with a fraction is rounded down where the training had integers.
    pub(super) only_time: bool,
}

impl ServingColumns {
    /// `types` and `lists` as in [`TrainingSummary`](crate::metrics::training_summary::TrainingSummary).
    pub(super) fn new(columns: &Columns, types: &BTreeMap<String, ColumnType>, lists: &BTreeSet<String>) -> Self {
        let hex = columns.slots.iter().filter(|slot| slot.kind == SlotKind::Hex);
        let hex: HashSet<&String> = hex.map(|slot| &slot.column).collect();
        let cut = columns.slots.iter().filter(|slot| slot.is_of_lists());
        let cut: HashSet<&String> = cut.flat_map(Slot::columns).collect();
        let only_times = columns.only_times();
        let optional: HashSet<&String> = columns.optional.iter().collect();
        let mut found: Vec<ServingColumn> = Vec::new();
        for name in columns.names_with(&[]) {
            if columns.extra.contains(&name) {
                continue;
            }
            let hex = hex.contains(&name);
            let lists = lists.contains(&name) || cut.contains(&name);
            // Hexadecimal strings and the integers that they stand for have the same keys.
            let trained = types.get(&name).copied();
            let (kind, told) = (trained.filter(|_| !hex), trained.or(hex.then_some(ColumnType::Text)));
            let (optional, only_time) = (optional.contains(&name), only_times.contains(name.as_str()));
            found.push(ServingColumn { optional, kind, told, lists, hex, only_time, name });
        }
        Self {
            by_name: found.iter().enumerate().map(|(at, column)| (column.name.clone(), at)).collect(),
            most_rows: (MOST_VALUES / found.len().max(1)).max(1),
            columns: found,
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    /// The columns with their types in training, strings for a slot of the kind `hex`, and nulls where no type is known.
    pub(super) fn schema(&self) -> Schema {
        let field = |column: &ServingColumn| {
            let kind = column.told.map_or(DataType::Null, ColumnType::data_type);
            let kind = if column.lists { DataType::new_list(kind, true) } else { kind };
            Field::new(&column.name, kind, true)
        };
        Schema::new(self.columns.iter().map(field).collect::<Vec<_>>())
    }

    /// The place of the column of this name, or the message if there is none.
    pub(super) fn place(&self, name: &str) -> Result<usize, String> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let near = nearest(name, self.names());
            let near = near
                .map_or_else(|| "see GET /v1/model for its columns".into(), |near| format!("did you mean `{near}`?"));
            let short: String = name.chars().take(80).collect();
            format!("column `{short}` is not a feature of the model: {near}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_hexadecimal_digits_has_a_type_that_it_takes() {
        let columns = toml::from_str(
            "label = 'y'\ndense = ['x']\nslots = [{ column = 'a', kind = 'hex' }, { column = 'b', kind = 'hex' }, 'c']",
        );
        let types = [("a", ColumnType::Integer), ("x", ColumnType::Number)].map(|(name, kind)| (name.to_owned(), kind));
        let schema = ServingColumns::new(&columns.unwrap(), &types.into(), &BTreeSet::new()).schema();
        let kinds: Vec<&DataType> = schema.fields().iter().map(|field| field.data_type()).collect();
        assert_eq!(kinds, [&DataType::Float64, &DataType::Int64, &DataType::Utf8, &DataType::Null]);
    }
}
