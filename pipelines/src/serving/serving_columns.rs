//! The columns that a request must have: their names, and the types that they had in training.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use arrow::datatypes::{DataType, Field, Schema};
use forebay_base::nearest;
use forebay_job::{Columns, SlotKind};

use crate::column_type::ColumnType;

/// The most values of a request: columns times rows, given or not. What they take is bounded so.
pub(super) const MOST_VALUES: usize = 1 << 20;

/// The feature columns of a model.
pub(super) struct ServingColumns {
    /// In the order of dense features and slots.
    pub(super) columns: Vec<ServingColumn>,
    by_name: HashMap<String, usize>,
    /// Rows of the largest request.
    pub(super) most_rows: usize,
}

/// A column that the model reads.
pub(super) struct ServingColumn {
    pub(super) name: String,
    /// May be absent from all rows.
    pub(super) optional: bool,
    /// The type in training, or that of the slot's kind; `None`: that of the values.
    pub(super) kind: Option<ColumnType>,
    /// Its values were lists in training, or are cut as lists.
    pub(super) lists: bool,
}

impl ServingColumns {
    /// `types` and `lists` as in [`TrainingSummary`](crate::TrainingSummary).
    pub(super) fn new(columns: &Columns, types: &BTreeMap<String, ColumnType>, lists: &BTreeSet<String>) -> Self {
        let mut found: Vec<ServingColumn> = Vec::new();
        for name in columns.names_with(&[]) {
            if columns.extra.contains(&name) {
                continue;
            }
            let mut slots = columns.slots.iter().filter(|slot| slot.column == name);
            let is_hex = slots.clone().any(|slot| slot.kind == SlotKind::Hex);
            let lists = lists.contains(&name) || slots.any(|slot| slot.first.or(slot.last).is_some());
            // Hexadecimal strings and the integers that they stand for have the same keys.
            let kind = types.get(&name).copied().filter(|_| !is_hex);
            found.push(ServingColumn { optional: columns.optional.contains(&name), kind, lists, name });
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

    /// The columns with the types of the training; nulls where it is not known.
    pub(super) fn schema(&self) -> Schema {
        let field = |column: &ServingColumn| {
            let kind = column.kind.map_or(DataType::Null, ColumnType::data_type);
            let kind = if column.lists { DataType::new_list(kind, true) } else { kind };
            Field::new(&column.name, kind, true)
        };
        Schema::new(self.columns.iter().map(field).collect::<Vec<_>>())
    }

    /// The place of the column of this name, or what to say if there is none.
    pub(super) fn place(&self, name: &str) -> Result<usize, String> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let near = nearest(name, self.names());
            let near = near
                .map_or_else(|| "see GET /v1/model for its columns".into(), |near| format!("did you mean `{near}`?"));
            let short: String = name.chars().take(80).collect();
            format!("column `{short}` is no feature of the model: {near}")
        })
    }
}
