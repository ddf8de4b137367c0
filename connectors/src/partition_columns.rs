//! The columns of folders `column=value`: their types over all files, and their values for one file.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int32Array, Int64Array, StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Int32Type};

use crate::file::DataFile;
use crate::format::{FileColumn, ValueKind};
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

/// The type of each partition column that is wanted: `Int64` if its values in all files are integers and it is not said to be text, else
/// text.
#[derive(Debug, Default)]
pub(crate) struct PartitionColumns {
    kinds: HashMap<String, DataType>,
}

impl PartitionColumns {
    /// `as_text` are columns whose values are text even if all of them are integers. `text` is the type of columns of text: `Utf8` or a
    /// dictionary of it.
    pub(crate) fn new<'a>(
        files: impl Iterator<Item = &'a DataFile> + Clone,
        wanted: &[String],
        as_text: &[String],
        text: &DataType,
    ) -> Self {
        let kind = |column: &String| {
            let value = |file: &'a DataFile| file.partitions.get(column).or(file.partitions.get_above(column));
            let values = files.clone().filter_map(value);
            let (mut any, mut integer, mut known) = (false, !as_text.contains(column), false);
            for value in values {
                any = true;
                known |= value.is_some();
                integer &= value.is_none_or(|value| value.parse::<i64>().is_ok());
            }
            any.then(|| (column.clone(), if integer && known { DataType::Int64 } else { text.clone() }))
        };
        Self { kinds: wanted.iter().filter_map(kind).collect() }
    }

    /// The field and the value of a column for the files of one folder, if the folder has this column.
    pub(crate) fn get(&self, column: &str, folders: &Partitions) -> Option<(Field, Constant)> {
        self.field(column, folders.get(column)?)
    }

    /// As [`get`](Self::get), of the folders of the path that was named.
    pub(crate) fn get_above(&self, column: &str, folders: &Partitions) -> Option<(Field, Constant)> {
        self.field(column, folders.get_above(column)?)
    }

    fn field(&self, column: &str, value: Option<&str>) -> Option<(Field, Constant)> {
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

/// The folders `column=value` above the first file, unless `is_there` says that the files have the column. A file that lies in no such
/// folder has nulls.
pub(crate) fn folder_columns(files: &[DataFile], is_there: impl Fn(&str) -> bool) -> Vec<FileColumn> {
    let folders = files.first().into_iter().flat_map(|file| file.partitions.iter()).map(|(name, _)| name);
    folders.filter(|name| !is_there(name)).map(|name| FileColumn::new(name, ValueKind::Text).optional(true)).collect()
}

/// The names of columns that are text where they are folders.
pub(crate) fn folders_of_text(columns: &[FileColumn]) -> Vec<String> {
    columns.iter().filter(|column| column.folder_text).map(|column| column.name.clone()).collect()
}
