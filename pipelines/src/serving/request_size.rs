//! How much a request holds once each row has values of its own. A small request can stand for much more: rows share a value, dictionaries
//! and views name a text many times, and nulls take no bytes.

use arrow::array::{AnyDictionaryArray, Array, AsArray};
use arrow::datatypes::DataType;
use forebay_actors::Fault;

use super::json_cell::JsonCell;
use super::serving_columns::{MOST_ELEMENTS, MOST_TEXT};

/// The elements of lists, and the bytes of text. A sum that is too large for an integer stays at its largest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestSize {
    elements: usize,
    text: usize,
}

impl RequestSize {
    /// Adds values that so many rows have.
    pub(super) fn add(&mut self, values: Self, rows: usize) {
        self.elements = self.elements.saturating_add(values.elements.saturating_mul(rows));
        self.text = self.text.saturating_add(values.text.saturating_mul(rows));
    }

    fn of_text(text: usize) -> Self {
        Self { elements: 0, text }
    }

    /// The size of a value in JSON.
    pub(super) fn of_cell(cell: &JsonCell<'_>) -> Self {
        match cell {
            JsonCell::Text(text) => Self::of_text(text.len()),
            JsonCell::List(list) => {
                let mut size = Self { elements: list.len(), text: 0 };
                list.iter().for_each(|cell| size.add(Self::of_cell(cell), 1));
                size
            }
            _ => Self::default(),
        }
    }

    /// The size of an array, each of whose values is copied where another array, such as a dictionary, has it once.
    pub(super) fn of_array(array: &dyn Array) -> Self {
        let values = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().values(),
            DataType::LargeList(_) => array.as_list::<i64>().values(),
            DataType::FixedSizeList(..) => array.as_fixed_size_list().values(),
            DataType::Dictionary(..) => return Self::of_dictionary(array.as_any_dictionary()),
            // It may have billions of values that take no bytes.
            DataType::FixedSizeBinary(bytes) => return Self::of_text((*bytes as usize).saturating_mul(array.len())),
            kind if kind.is_string() || kind.is_binary() => return Self::of_text(text(array, 0..array.len())),
            _ => return Self::default(),
        };
        let mut size = Self { elements: values.len(), text: 0 };
        size.add(Self::of_array(values), 1);
        size
    }

    fn of_dictionary(array: &dyn AnyDictionaryArray) -> Self {
        let (keys, values) = (array.keys(), array.values());
        // The values are read, too, although no key may name them.
        let mut size = Self::of_array(values);
        if !values.is_empty() {
            let places = array.normalized_keys().into_iter().enumerate();
            let named = places.filter_map(|(at, place)| keys.is_valid(at).then_some(place));
            size.add(Self::of_text(text(values, named)), 1);
        }
        size
    }

    /// Refuses a request that would take too much memory.
    pub(super) fn check(self) -> Result<(), Fault> {
        let Self { elements, text } = self;
        let what = if elements > MOST_ELEMENTS {
            format!("lists of {elements} elements, at most {MOST_ELEMENTS}")
        } else if text > MOST_TEXT {
            format!("text of {text} bytes, at most {MOST_TEXT}")
        } else {
            return Ok(());
        };
        Err(Fault::user(format!(
            "the rows have {what} in all; a value that rows share counts for each of them: split the rows over several requests"
        )))
    }
}

/// The bytes of the texts at `places` of an array; 0 for values of another type.
fn text(array: &dyn Array, places: impl Iterator<Item = usize>) -> usize {
    let sum = |length: &dyn Fn(usize) -> usize| places.map(length).fold(0, usize::saturating_add);
    match array.data_type() {
        DataType::Utf8 => sum(&|at| array.as_string::<i32>().value_length(at) as usize),
        DataType::LargeUtf8 => sum(&|at| array.as_string::<i64>().value_length(at) as usize),
        DataType::Binary => sum(&|at| array.as_binary::<i32>().value_length(at) as usize),
        DataType::LargeBinary => sum(&|at| array.as_binary::<i64>().value_length(at) as usize),
        DataType::FixedSizeBinary(bytes) => sum(&|_| *bytes as usize),
        // The length of a text is in the lower half of its view.
        DataType::Utf8View => sum(&|at| array.as_string_view().views()[at] as u32 as usize),
        DataType::BinaryView => sum(&|at| array.as_binary_view().views()[at] as u32 as usize),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, DictionaryArray, FixedSizeListArray, Int32Array, ListArray, NullArray, StringArray, StringViewArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::Field;

    use super::*;

    fn size(array: &dyn Array) -> (usize, usize) {
        let RequestSize { elements, text } = RequestSize::of_array(array);
        (elements, text)
    }

    #[test]
    fn each_value_of_an_array_counts_though_it_may_take_no_bytes_or_be_there_once() {
        assert_eq!(size(&StringArray::from(vec!["oslo", "rome", ""])), (0, 8));
        assert_eq!(size(&StringViewArray::from(vec!["a text of more than twelve bytes", "b"])), (0, 33));
        assert_eq!(size(&NullArray::new(1 << 31)), (0, 0));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["0123456789", "unused"]));
        let keys = Int32Array::from(vec![Some(0), Some(0), None, Some(0)]);
        let dictionary = DictionaryArray::new(keys, texts);
        assert_eq!(size(&dictionary), (0, 16 + 30));
        let empty: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
        assert_eq!(size(&DictionaryArray::new(Int32Array::from(vec![None, None]), empty)), (0, 0));

        let field = |array: &dyn Array| Arc::new(Field::new("element", array.data_type().clone(), true));
        let lists = ListArray::new(field(&dictionary), OffsetBuffer::from_lengths([3, 1]), Arc::new(dictionary), None);
        assert_eq!(size(&lists), (4, 16 + 30));
        let nulls = NullArray::new(2_000_000_000);
        let lists = FixedSizeListArray::new(field(&nulls), 2_000_000, Arc::new(nulls), None);
        assert_eq!(size(&lists), (2_000_000_000, 0));
    }

    #[test]
    fn what_is_too_much_is_refused_with_the_limit_also_if_the_sum_is_no_integer() {
        let check = |elements, text, rows| {
            let mut size = RequestSize::default();
            size.add(RequestSize { elements, text }, rows);
            size.check().map_err(|fault| fault.to_string())
        };
        assert_eq!(check(4096, 65536, 1024), Ok(()));
        assert!(check(4097, 0, 1024).unwrap_err().contains("lists of 4195328 elements, at most 4194304 in all"));
        assert!(check(0, 65537, 1024).unwrap_err().contains("text of 67109888 bytes, at most 67108864 in all"));
        check(usize::MAX, 0, 2).unwrap_err();
        check(0, 2, usize::MAX).unwrap_err();
    }
}
