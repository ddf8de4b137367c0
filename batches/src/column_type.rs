//! The type of the values of a feature column in training. A manifest stores it, so that rows without types (JSON) are read alike.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use forebay_connectors::{is_hex_of_text, is_integer_of_text, is_number_of_text};
use forebay_job::{Columns, Slot};
use serde::{Deserialize, Serialize};

/// The type of the values of a column; for a list, the type of its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnType {
    /// True or false.
    Boolean,
    /// Integers of any width.
    Integer,
    /// Integers of CSV or JSON lines, of a column that is also a dense feature, where they are numbers.
    TextInteger,
    /// Floating-point numbers.
    Number,
    /// Strings, or binary values. Also hexadecimal digits of CSV or JSON lines.
    Text,
    /// Days since 1970.
    Date,
    /// A moment, in any unit of the file.
    Timestamp,
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "booleans",
            Self::Integer => "integers",
            Self::TextInteger => "integers of text",
            Self::Number => "numbers",
            Self::Text => "strings",
            Self::Date => "dates",
            Self::Timestamp => "timestamps",
        })
    }
}

impl ColumnType {
    fn of_field(field: &Field) -> Option<Self> {
        match Self::of(field.data_type()) {
            Some(Self::Integer) if is_number_of_text(field) => Some(Self::TextInteger),
            Some(Self::Integer) if is_hex_of_text(field) => Some(Self::Text),
            Some(Self::Text) if is_integer_of_text(field) => Some(Self::Integer),
            kind => kind,
        }
    }

    fn of(kind: &DataType) -> Option<Self> {
        Some(match kind {
            DataType::Boolean => Self::Boolean,
            kind if kind.is_integer() => Self::Integer,
            kind if kind.is_floating() || kind.is_decimal() => Self::Number,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Text,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
                Self::Text
            }
            DataType::Date32 | DataType::Date64 => Self::Date,
            DataType::Timestamp(..) => Self::Timestamp,
            DataType::Dictionary(_, value) => return Self::of(value),
            DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
                return Self::of(element.data_type());
            }
            _ => return None,
        })
    }

    /// An Arrow type whose values have this type.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::Integer | Self::TextInteger => DataType::Int64,
            Self::Number => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::Date => DataType::Date32,
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
        }
    }
}

/// The types of the feature columns in rows of this schema. A column of another type has none.
pub fn feature_types(columns: &Columns, schema: &Schema) -> BTreeMap<String, ColumnType> {
    features(columns, schema).filter_map(|(name, field)| Some((name.clone(), ColumnType::of_field(field)?))).collect()
}

/// The feature columns of lists in rows of this schema.
pub fn list_columns(columns: &Columns, schema: &Schema) -> BTreeSet<String> {
    let is_list =
        |kind: &DataType| matches!(kind, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..));
    features(columns, schema).filter(|(_, field)| is_list(field.data_type())).map(|(name, _)| name.clone()).collect()
}

/// The name and the field of each feature column that the schema has.
fn features<'c>(columns: &'c Columns, schema: &'c Schema) -> impl Iterator<Item = (&'c String, &'c Field)> {
    let fields: HashMap<&str, &Field> =
        schema.fields().iter().rev().map(|field| (field.name().as_str(), &**field)).collect();
    let dense = columns.dense.iter().flat_map(|dense| std::iter::once(&dense.column).chain(dense.at_column()));
    let names = dense.chain(columns.slots.iter().flat_map(Slot::columns));
    names.filter_map(move |name| Some((name, *fields.get(name.as_str())?)))
}
