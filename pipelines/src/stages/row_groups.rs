//! Numbers the values of a column, to tell which rows of an evaluation belong together. It keeps 4 bytes per row, and the text of
//! each distinct value.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use forebay_actors::Fault;

/// The values of one column, row by row.
pub(super) struct RowGroups {
    pub(super) column: String,
    numbers: HashMap<String, u32>,
    /// `[n]`: the number of each row's value; [`MISSING`] without one.
    pub(super) rows: Vec<u32>,
}

/// The number of a missing value.
pub(super) const MISSING: u32 = u32::MAX;

impl RowGroups {
    pub(super) fn new(column: String) -> Self {
        Self { column, numbers: HashMap::new(), rows: Vec::new() }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// A user fault if values of this type cannot be told apart as text (lists, for instance).
    pub(super) fn add(&mut self, values: &ArrayRef) -> Result<(), Fault> {
        let text = match values.data_type() {
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => None,
            kind if kind.is_nested() => None,
            _ => cast(values, &DataType::Utf8).ok(),
        };
        let Some(text) = text else {
            return Err(Fault::user(format!(
                "rows cannot be grouped by column `{}`, which is {}: name a column with one number, string, date or boolean \
                 for each row",
                self.column,
                values.data_type()
            )));
        };
        for value in text.as_string::<i32>() {
            let number = match value {
                None => MISSING,
                Some(value) => match self.numbers.get(value) {
                    Some(number) => *number,
                    None => {
                        let next = self.numbers.len() as u32;
                        self.numbers.insert(value.to_owned(), next);
                        next
                    }
                },
            };
            self.rows.push(number);
        }
        Ok(())
    }

    /// The values with the most rows, at most `most` of them, and the numbers of their rows. Values with equally many rows are ordered by
    /// their text.
    pub(super) fn largest(&self, most: usize) -> Vec<(Option<&str>, Vec<u32>)> {
        let mut groups: Vec<(Option<&str>, Vec<u32>)> = vec![(None, Vec::new()); self.numbers.len() + 1];
        for (value, &number) in &self.numbers {
            groups[number as usize].0 = Some(value);
        }
        let missing = groups.len() - 1;
        for (row, &number) in self.rows.iter().enumerate() {
            groups[if number == MISSING { missing } else { number as usize }].1.push(row as u32);
        }
        groups.retain(|(_, rows)| !rows.is_empty());
        groups.sort_by(|a, b| b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0)));
        groups.truncate(most);
        groups
    }
}
