//! A column being filled with the values of objects: one for each row, or a list.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ListArray, NullBufferBuilder};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field};
use forebay_actors::Fault;

use super::object::{elements, string};
use crate::format::{Integers, ValueKind};
use crate::text::bad_row::Reason;
use crate::text::column::{Column, data_type};

/// The name of the elements of a list.
const ELEMENT: &str = "element";

/// The type of the arrays of a column.
pub(super) fn column_type(kind: ValueKind, list: bool) -> DataType {
    if list { DataType::List(Arc::new(Field::new(ELEMENT, data_type(kind), true))) } else { data_type(kind) }
}

/// The values so far.
pub(super) struct JsonColumn {
    values: Column,
    lists: Option<Lists>,
}

/// Where lists end.
struct Lists {
    kind: ValueKind,
    /// A zero, and the end of each list.
    ends: Vec<i32>,
    /// Elements so far, and how many of them belong to whole rows.
    elements: usize,
    present: NullBufferBuilder,
}

impl JsonColumn {
    pub(super) fn new(kind: ValueKind, integers: Integers, list: bool, capacity: usize) -> Self {
        let lists = || Lists { kind, ends: vec![0], elements: 0, present: NullBufferBuilder::new(capacity) };
        Self { values: Column::new(kind, integers, capacity), lists: list.then(lists) }
    }

    /// Adds the value of a row, given as its text. If it cannot be a value of this column, the rows that were added before stay as they
    /// are.
    pub(super) fn push(&mut self, raw: &str) -> Result<(), Reason> {
        let Some(lists) = &mut self.lists else { return push(&mut self.values, raw) };
        match raw.as_bytes().first() {
            Some(b'[') => {
                for element in elements(raw).map_err(|_| Reason::NotJson)? {
                    push(&mut self.values, element.get())?;
                    lists.elements += 1;
                }
            }
            Some(b'n') => return self.push_missing(),
            _ => {
                push(&mut self.values, raw)?;
                lists.elements += 1;
            }
        }
        lists.ends.push(i32::try_from(lists.elements).map_err(|_| Reason::TooLong)?);
        lists.present.append_non_null();
        Ok(())
    }

    /// Adds a missing value.
    pub(super) fn push_missing(&mut self) -> Result<(), Reason> {
        match &mut self.lists {
            None => self.values.push_missing(),
            Some(lists) => {
                lists.ends.push(i32::try_from(lists.elements).map_err(|_| Reason::TooLong)?);
                lists.present.append_null();
            }
        }
        Ok(())
    }

    pub(super) fn rows(&self) -> usize {
        self.lists.as_ref().map_or_else(|| self.values.len(), |lists| lists.present.len())
    }

    /// Bytes of text held.
    pub(super) fn text_bytes(&self) -> usize {
        self.values.text_bytes()
    }

    /// Forgets what was added after the first `rows` rows.
    pub(super) fn truncate(&mut self, rows: usize) {
        let Some(lists) = &mut self.lists else { return self.values.truncate(rows) };
        lists.ends.truncate(rows + 1);
        lists.present.truncate(rows);
        lists.elements = lists.ends.last().map_or(0, |&end| end as usize);
        self.values.truncate(lists.elements);
    }

    /// The values as an array.
    pub(super) fn finish(self) -> Result<ArrayRef, Fault> {
        let values = self.values.finish()?;
        let Some(mut lists) = self.lists else { return Ok(values) };
        let ends = OffsetBuffer::new(ScalarBuffer::from(lists.ends));
        let element = Arc::new(Field::new(ELEMENT, data_type(lists.kind), true));
        let array = ListArray::try_new(element, ends, values, lists.present.finish());
        let array = array.map_err(|e| Fault::internal("lists of JSON make no column").because(e))?;
        debug_assert_eq!(array.data_type(), &column_type(lists.kind, true));
        Ok(Arc::new(array))
    }
}

/// Adds one value: the content of a string (an empty string is a missing number), a number or a boolean as it is written; in a column of
/// numbers a boolean is 1 or 0. In a column of hexadecimal digits a number without quotes is the integer itself.
fn push(values: &mut Column, raw: &str) -> Result<(), Reason> {
    match (raw.as_bytes().first(), values.kind()) {
        (Some(b'n'), _) => {
            values.push_missing();
            Ok(())
        }
        (Some(b'"'), kind) => match (&*string(raw).map_err(|_| Reason::NotJson)?, kind) {
            (text, ValueKind::Text) => values.push(text.as_bytes()),
            ("", _) => {
                values.push_missing();
                Ok(())
            }
            (text, _) => values.push(text.as_bytes()),
        },
        (Some(b'[' | b'{'), _) => Err(Reason::NotOneValue),
        (Some(b't' | b'f'), ValueKind::Number | ValueKind::Integer | ValueKind::IntegerText) => {
            values.push(if raw == "true" { b"1" } else { b"0" })
        }
        (_, ValueKind::Hex | ValueKind::HexText) => values.push_hex(raw.as_bytes()),
        _ => values.push(raw.as_bytes()),
    }
}
