//! Finds a column of a record batch by name, makes its values numbers, and makes the fault for a column of the wrong type.

use std::collections::HashMap;
use std::fmt::{self, Display, LowerExp};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float16Type};
use forebay_actors::{Fault, FaultKind};

/// The expected kind of a column, which also determines the advice for a column of the wrong type.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// A dense feature.
    Dense,
    /// A slot with quantiles.
    Quantiles,
    /// A slot; the words name its values.
    Slot(&'a str),
    /// Something else, in words.
    Other(&'a str),
}

impl Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::Dense => "integers, floating-point numbers, decimals or booleans for a dense feature",
            Self::Quantiles => "integers, floating-point numbers or decimals for a slot with quantiles",
            Self::Slot(words) | Self::Other(words) => words,
        })
    }
}

pub(super) const NOT_FINITE: &str = "dense value is not finite";

/// The columns of a batch by name. A batch may have tens of thousands, and `column_by_name` of Arrow goes through all of them.
pub(super) struct BatchColumns<'a> {
    batch: &'a RecordBatch,
    places: HashMap<&'a str, usize>,
}

impl<'a> BatchColumns<'a> {
    pub(super) fn of(batch: &'a RecordBatch) -> Self {
        let fields = batch.schema_ref().fields().iter().enumerate();
        // If several columns have one name, the first counts.
        let places = fields.rev().map(|(at, field)| (field.name().as_str(), at)).collect();
        Self { batch, places }
    }

    fn place(&self, name: &str) -> Result<usize, Fault> {
        self.places.get(name).copied().ok_or_else(|| {
            let there: Vec<&str> = self.batch.schema_ref().fields().iter().map(|f| f.name().as_str()).collect();
            Fault::user(format!("no column `{name}`: the rows have {}", there.join(", ")))
                .kind(FaultKind::MissingColumn)
        })
    }

    pub(super) fn column(&self, name: &str) -> Result<&'a ArrayRef, Fault> {
        Ok(self.batch.column(self.place(name)?))
    }

    pub(super) fn field(&self, name: &str) -> Result<&'a Field, Fault> {
        Ok(self.batch.schema_ref().field(self.place(name)?))
    }
}

/// A number of the job as it is in a column of this type, so that 0.7 is not below 0.7 where numbers have 32 or 16 bits.
pub(super) fn number_in(kind: &DataType, number: f64) -> f64 {
    match kind {
        DataType::Float32 => f64::from(number as f32),
        DataType::Float16 => <Float16Type as ArrowPrimitiveType>::Native::from_f64(number).to_f64(),
        _ => number,
    }
}

/// A column as numbers of one type.
pub(super) fn number<T: ArrowPrimitiveType>(name: &str, array: &ArrayRef) -> Result<ArrayRef, Fault> {
    cast(array, &T::DATA_TYPE).map_err(|e| Fault::user(format!("column `{name}` cannot be read as numbers")).because(e))
}

/// A number for a message: a very large or small one with an exponent instead of hundreds of zeros. In text an infinite one may have been
/// written as a number.
pub(super) fn shown<T: Copy + Display + Into<f64> + LowerExp>(number: T) -> String {
    let size: f64 = number.into().abs();
    if size.is_infinite() {
        return format!("{number} (or a number too large for a float)");
    }
    if size == 0.0 || (1e-9..1e16).contains(&size) { number.to_string() } else { format!("{number:e}") }
}

/// The lists of a column, with offsets of any width or a fixed size; `None`: the column has no lists. Numbers in dictionaries, as Arrow
/// writes them to Parquet, become numbers.
///
/// # Errors
/// A user fault for lists of lists.
pub(super) fn lists(name: &str, array: &ArrayRef) -> Result<Option<ListArray>, Fault> {
    let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) = array.data_type()
    else {
        return Ok(None);
    };
    let item = match item.data_type() {
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
            return Err(wrong_type(name, array, Wanted::Other("values or lists of values, and no lists of lists")));
        }
        DataType::Dictionary(_, value) if value.is_numeric() => {
            Arc::new(item.as_ref().clone().with_data_type(value.as_ref().clone()))
        }
        _ => Arc::clone(item),
    };
    let wanted = DataType::List(item);
    if *array.data_type() == wanted {
        return Ok(Some(array.as_list().clone()));
    }
    let lists = cast(array, &wanted)
        .map_err(|e| Fault::user(format!("column `{name}` cannot be read as lists of up to 2^31 values")).because(e))?;
    Ok(Some(lists.as_list().clone()))
}

/// The fault for a column of the wrong type. It says what to do with types that cannot be features.
pub(super) fn wrong_type(name: &str, array: &dyn Array, expected: Wanted<'_>) -> Fault {
    wrong(name, "", array, expected)
}

/// The fault for a column of lists of the wrong type, given their items.
pub(super) fn wrong_items(name: &str, items: &dyn Array, expected: Wanted<'_>) -> Fault {
    wrong(name, "a list of ", items, expected)
}

fn wrong(name: &str, of: &str, array: &dyn Array, expected: Wanted<'_>) -> Fault {
    let advice = match (array.data_type(), expected) {
        (kind, Wanted::Slot(_)) if kind.is_floating() => {
            ": numbers with fractions make a slot in buckets, kind = \"log_bucket\", or kind = \"boundaries\" with boundaries = [...] or \
             quantiles = 10; or make it a dense feature. Write ids as integers; pandas makes floating-point numbers of ids if one is \
             missing: .astype(\"Int64\")"
        }
        (kind, Wanted::Slot(_)) if kind.is_decimal() => {
            ": cast it to bigint when it is written, or set kind to \"log_bucket\""
        }
        (DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..), Wanted::Dense) => {
            ": if it is a vector, say how many numbers it has: { column = ..., length = ... }"
        }
        (DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..), Wanted::Quantiles) => {
            ": quantiles are those of single numbers, so give a slot of lists boundaries = [...]"
        }
        (DataType::Struct(_), _) => ": write the fields that matter as columns of their own",
        (DataType::Map(..), _) => ": write its keys or its values as a list column",
        (DataType::Timestamp(..), Wanted::Dense) => {
            ": set transform to \"hour\", \"weekday\", \"age_days\" or \"age_hours\", or make it a slot"
        }
        // A date has no hour.
        (DataType::Date32 | DataType::Date64, Wanted::Dense) => {
            ": set transform to \"weekday\", \"age_days\" or \"age_hours\", or make it a slot"
        }
        (DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_), _) => {
            ": cast it to bigint when it is written, such as its seconds"
        }
        (DataType::Timestamp(..) | DataType::Date32 | DataType::Date64, _) => {
            ": write what matters of it as a number (the hour, the days since something), or make it a slot"
        }
        _ => "",
    };
    // The reader makes dictionaries of texts, so the type in the file is the type of the values.
    let kind = match array.data_type() {
        DataType::Dictionary(_, values) => values,
        kind => kind,
    };
    Fault::user(format!("column `{name}` is {of}{kind}, expected {expected}{advice}")).kind(FaultKind::OtherType)
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, FixedSizeListArray, Float32Array, Int32Array};
    use arrow::datatypes::{Field, Float32Type, TimeUnit};

    use super::*;

    /// A bug: the type of the inner list was named, which is allowed.
    #[test]
    fn a_list_of_lists_is_named_as_it_is() {
        let item = Arc::new(Field::new_list_field(DataType::new_list(DataType::Int64, true), true));
        let array = arrow::array::new_null_array(&DataType::List(item), 1);
        let said = lists("q", &array).unwrap_err().to_string();
        assert!(said.contains(&format!("column `q` is {}, expected values or lists", array.data_type())), "{said}");
    }

    #[test]
    fn advice_fits_what_is_expected() {
        let decimals = arrow::array::new_null_array(&DataType::Decimal128(10, 2), 1);
        let said = |expected| wrong_type("x", &decimals, expected).to_string();
        let of_slot = said(Wanted::Slot("integers, strings, booleans, dates or timestamps"));
        assert!(of_slot.contains("bigint") && of_slot.contains("log_bucket"), "{of_slot}");
        let of_date = wrong_type("d", &arrow::array::new_null_array(&DataType::Date32, 1), Wanted::Dense).to_string();
        assert!(of_date.contains("set transform to \"weekday\", \"age_days\""), "{of_date}");
        let floats = arrow::array::new_null_array(&DataType::Float64, 1);
        let of_float = wrong_type("x", &floats, Wanted::Slot("integers")).to_string();
        assert!(of_float.contains("log_bucket") && of_float.ends_with(".astype(\"Int64\")"), "{of_float}");
        // A bug: times of day and durations were the only types without a way out.
        for kind in [DataType::Time64(TimeUnit::Microsecond), DataType::Duration(TimeUnit::Second)] {
            for expected in [Wanted::Dense, Wanted::Slot("integers")] {
                let said = wrong_type("t", &arrow::array::new_null_array(&kind, 1), expected).to_string();
                assert!(said.contains("cast it to bigint"), "{said}");
            }
        }
        // A label was advised to become a slot.
        assert!(said(Wanted::Other("text")).ends_with("expected text"));
    }

    #[test]
    fn numbers_in_messages_are_short() {
        assert_eq!(
            [1e300, -2.5, 0.0, f64::INFINITY].map(shown),
            ["1e300", "-2.5", "0", "inf (or a number too large for a float)"]
        );
        assert_eq!([0.1_f32, 1e30].map(shown), ["0.1", "1e30"]);
    }

    /// As pyarrow writes lists of numbers in dictionaries.
    #[test]
    fn numbers_of_lists_leave_their_dictionaries() {
        let values = Arc::new(Float32Array::from(vec![0.5, 2.0]));
        let keys = Int32Array::from(vec![Some(1), Some(0), Some(1), None]);
        let numbers = DictionaryArray::new(keys, values);
        let item = Arc::new(Field::new("item", numbers.data_type().clone(), true));
        let array: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, Arc::new(numbers), None));
        let lists = lists("v", &array).unwrap().unwrap();
        let found: Vec<_> = lists.values().as_primitive::<Float32Type>().iter().collect();
        assert_eq!(found, [Some(2.0), Some(0.5), Some(2.0), None]);
        assert_eq!((lists.len(), lists.value_length(1)), (2, 2));
    }
}
