//! The places of the rows of a batch in their file, as a user counts: lines of text from 1, rows of other files from 0.

use std::sync::Arc;

use arrow::array::BooleanArray;

use crate::file::DataFile;

/// The places of the rows of one batch, all in one file.
#[derive(Clone, Debug)]
pub struct RowPlaces {
    file: Arc<DataFile>,
    unit: Unit,
    numbers: Numbers,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Rows of the file, from 0.
    Row,
    /// Lines of the file, from 1.
    Line,
    /// The bytes of the file before the line, where its number is not known.
    Byte,
}

#[derive(Clone, Debug)]
enum Numbers {
    /// Consecutive numbers, from this one on.
    From(u64),
    Each(Vec<u64>),
}

impl RowPlaces {
    /// Rows of a file from this one on, counted from 0.
    pub(crate) fn rows_from(file: &Arc<DataFile>, first: u64) -> Self {
        Self { file: Arc::clone(file), unit: Unit::Row, numbers: Numbers::From(first) }
    }

    /// The number of each row.
    pub(crate) fn each(file: &Arc<DataFile>, unit: Unit, numbers: Vec<u64>) -> Self {
        Self { file: Arc::clone(file), unit, numbers: Numbers::Each(numbers) }
    }

    /// Bytes of the numbers.
    pub(crate) fn bytes(&self) -> usize {
        match &self.numbers {
            Numbers::From(_) => 0,
            Numbers::Each(numbers) => size_of_val(numbers.as_slice()),
        }
    }

    /// The file, as messages print it.
    pub fn file(&self) -> &str {
        &self.file.name
    }

    /// What is counted (`row`, `line` or `byte`), and the number of row `row` of the batch; `None` if it is not known.
    pub fn number(&self, row: usize) -> Option<(&'static str, u64)> {
        let number = match &self.numbers {
            Numbers::From(first) => first + row as u64,
            Numbers::Each(numbers) => *numbers.get(row)?,
        };
        let unit = match self.unit {
            Unit::Row => "row",
            Unit::Line => "line",
            Unit::Byte => "byte",
        };
        Some((unit, number))
    }

    /// The place of row `row` of the batch for a message, such as `` `rows.csv`, line 7 ``. If only the byte is known, reads the file up to
    /// there.
    pub async fn place(&self, row: usize) -> String {
        let file = self.file();
        match self.number(row) {
            None => format!("`{file}`"),
            Some(("byte", byte)) => match self.file.lines_before(byte).await {
                Ok(lines) => format!("`{file}`, line {}", lines + 1),
                Err(_) => format!("`{file}`, the line that begins at byte {byte}"),
            },
            Some(("row", number)) => format!("`{file}`, row {number} (counted from 0)"),
            Some((unit, number)) => format!("`{file}`, {unit} {number}"),
        }
    }

    /// The places of the rows for which `keep` is true.
    pub(crate) fn filtered(&self, keep: &BooleanArray) -> Self {
        let kept = keep.iter().enumerate().filter(|(_, keep)| *keep == Some(true));
        let numbers = kept.filter_map(|(row, _)| self.number(row).map(|(_, number)| number)).collect();
        Self { file: Arc::clone(&self.file), unit: self.unit, numbers: Numbers::Each(numbers) }
    }
}
