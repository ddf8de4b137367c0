//! Parses dense features that are lists of numbers, all of one length: vectors that another model computed. Each number is an input of
//! the model, with the options of the feature.

use arrow::array::{Array, ArrayRef, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use forebay_actors::{Fault, counted};
use forebay_job::{Columns, DenseColumn};

use super::bad_rows::BadRows;
use super::column::{Wanted, lists, wrong_type};
use super::dense_options::OptionsParser;

const WRONG_LENGTH: &str = "dense vector of another length";

/// Parses a dense feature of `length` numbers.
pub(super) struct VectorParser {
    length: usize,
    indicator: bool,
    numbers: OptionsParser,
}

impl VectorParser {
    pub(super) fn new(length: usize, column: &DenseColumn, columns: &Columns) -> Self {
        Self { length, indicator: column.indicator, numbers: OptionsParser::new(column, columns) }
    }

    /// Appends the inputs to `out`: `[length × n]`, and `[n]` more for an indicator, which says where the list or one of its numbers is
    /// missing.
    pub(super) fn parse(
        &self,
        name: &str,
        array: &ArrayRef,
        out: &mut Vec<f32>,
        bad: &mut BadRows,
    ) -> Result<(), Fault> {
        let (rows, length) = (array.len(), self.length);
        let values = self.values(name, array, bad)?;
        let (mut flat, mut wrong) = (Vec::new(), BadRows::default());
        self.numbers.parse(name, &values, None, &mut flat, &mut wrong)?;
        bad.add_all(wrong, |value| value / length);
        let (inputs, missing) = flat.split_at(rows * length);
        out.reserve(rows * (length + usize::from(self.indicator)));
        for at in 0..length {
            out.extend(inputs.iter().skip(at).step_by(length));
        }
        if self.indicator {
            out.extend(missing.chunks_exact(length).map(|row| row.iter().copied().fold(0.0, f32::max)));
        }
        Ok(())
    }

    /// The numbers of all rows, `[n × length]`; null for a missing list and for a list of another length.
    fn values(&self, name: &str, array: &ArrayRef, bad: &mut BadRows) -> Result<ArrayRef, Fault> {
        let (rows, length) = (array.len(), self.length);
        // A column that all files lack.
        if *array.data_type() == DataType::Null {
            return Ok(new_null_array(&DataType::Float64, rows * length));
        }
        let expected = Wanted::Other("lists of numbers, because its columns.dense.length is set");
        let lists = lists(name, array)?.ok_or_else(|| wrong_type(name, array, expected))?;
        let (ends, whole) = (lists.offsets(), lists.null_count() == 0);
        if whole && (0..rows).all(|row| lists.value_length(row) as usize == length) {
            return Ok(lists.values().slice(ends[0] as usize, rows * length));
        }
        let mut of = UInt32Array::builder(rows * length);
        for row in 0..rows {
            let found = lists.value_length(row) as usize;
            if lists.is_null(row) {
                of.append_nulls(length);
            } else if found == length {
                (ends[row]..ends[row + 1]).for_each(|at| of.append_value(at as u32));
            } else {
                of.append_nulls(length);
                bad.add(row, WRONG_LENGTH, || {
                    format!("column `{name}` has {}, expected {length}", counted(found, "value"))
                });
            }
        }
        take(lists.values(), &of.finish(), None)
            .map_err(|e| Fault::user(format!("column `{name}` cannot be read")).because(e))
    }
}
