//! The columns that folders `column=value` stand for: their types over all files, and their values for one file.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int32Array, Int64Array, StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Int32Type};

use crate::file::DataFile;
use crate::partition::Partitions;

/// The value of a partition column for one file.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    /// A missing value.
    Null(DataType),
    Int(i64),
    Text(String),
    /// An array of the one value, which all batches share, so that its key is hashed once.
    Dictionary(ArrayRef),
}

impl Constant {
    /// The column of `rows` rows.
    pub(crate) fn rows(&self, rows: usize) -> ArrayRef {
        match self {
            Self::Null(kind) => new_null_array(kind, rows),
            Self::Int(value) => Arc::new(Int64Array::from_value(*value, rows)),
            Self::Text(value) => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows))),
            Self::Dictionary(value) => {
                let keys = Int32Array::from_value(0, rows);
                Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::clone(value)))
            }
        }
    }
}

/// The type of each partition column that is wanted: `Int64` if its values in all files are integers, else text.
#[derive(Debug, Default)]
pub(crate) struct PartitionColumns {
    kinds: HashMap<String, DataType>,
}

impl PartitionColumns {
    /// `text` is the type of columns of text: `Utf8` or a dictionary of it.
    pub(crate) fn new<'a>(
        files: impl Iterator<Item = &'a DataFile> + Clone,
        wanted: &[String],
        text: &DataType,
    ) -> Self {
        let kind = |column: &String| {
            let values = files.clone().filter_map(|file| file.partitions.get(column));
            let (mut any, mut integer, mut known) = (false, true, false);
            for value in values {
                any = true;
                known |= value.is_some();
                integer &= value.is_none_or(|value| value.parse::<i64>().is_ok());
            }
            any.then(|| (column.clone(), if integer && known { DataType::Int64 } else { text.clone() }))
        };
        Self { kinds: wanted.iter().filter_map(kind).collect() }
    }

    /// The field and the value of a column for the files of one folder, if it is one of that folder's.
    pub(crate) fn get(&self, column: &str, folders: &Partitions) -> Option<(Field, Constant)> {
        let value = folders.get(column)?;
        let kind = self.kinds.get(column)?;
        let constant = match (value, kind) {
            (None, _) => Constant::Null(kind.clone()),
            (Some(value), DataType::Int64) => Constant::Int(value.parse().ok()?),
            (Some(value), DataType::Utf8) => Constant::Text(value.to_owned()),
            (Some(value), _) => Constant::Dictionary(Arc::new(StringArray::from(vec![value]))),
        };
        Some((Field::new(column, kind.clone(), true), constant))
    }
}
