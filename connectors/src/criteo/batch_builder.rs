//! Parses Criteo lines into columns: one pass over the bytes, no allocation per field or line. A bad line leaves no trace;
//! `bad_row` says what is wrong with it.
//!
//! Rows go to a small block first, and a full block to the columns. Columns of 2^n bytes begin in the same set of the L1 cache, which does
//! not hold one line of each of 40 columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, UInt32Array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_actors::Fault;

use super::diagnosis::{diagnose, diagnose_unlabelled};
use super::field::{eight_or_none, hex_field, int_field, short_int};
use super::schema::{CATEGORIES, COLUMNS, Categories, INTEGERS, criteo_schema, with_hex_categories};
use crate::text::bad_row::BadRow;
use crate::text::format::LineParser;

/// Rows of a block.
const BLOCK: usize = 64;

/// Columns being filled.
pub struct BatchBuilder {
    categories: Categories,
    /// One value per column and row, without the rows of `block`; a missing value is 0. Integers are stored by their bits.
    values: Vec<Vec<u32>>,
    /// The values of the last rows, per column.
    block: Box<[[u32; BLOCK]; COLUMNS]>,
    /// Rows of `block`: always fewer than it can hold.
    block_rows: usize,
    /// Per row one bit per column: whether it has a value.
    present: Vec<u64>,
    capacity: usize,
    schema: SchemaRef,
    /// Whether lines without a label are rows, too.
    label_optional: bool,
    /// Whether the last row had a label.
    labelled: bool,
}

impl BatchBuilder {
    pub(crate) fn new(categories: Categories, capacity: usize) -> Self {
        let mut columns = Self {
            categories,
            values: Vec::new(),
            block: Box::new([[0; BLOCK]; COLUMNS]),
            block_rows: 0,
            present: Vec::new(),
            capacity: capacity.max(1),
            schema: criteo_schema(Categories::Int),
            label_optional: false,
            labelled: true,
        };
        columns.renew();
        columns
    }

    /// Whether lines of 39 fields, without a label, are rows, too. Their label is 0.
    pub(crate) fn label_optional(self, label_optional: bool) -> Self {
        Self { label_optional, ..self }
    }

    fn renew(&mut self) {
        self.values = (0..COLUMNS).map(|_| Vec::with_capacity(self.capacity)).collect();
        self.present = Vec::with_capacity(self.capacity);
    }

    /// Moves the rows of the block to the columns.
    #[inline(never)]
    fn empty_block(&mut self) {
        for (column, block) in self.values.iter_mut().zip(&*self.block) {
            column.extend_from_slice(&block[..self.block_rows]);
        }
        self.block_rows = 0;
    }

    #[inline]
    fn push_line(&mut self, text: &[u8], at: usize, labelled: bool) -> Option<usize> {
        // The remainder changes nothing, and tells the compiler that the number is within the block.
        let row = self.block_rows % BLOCK;
        let mut p = at;
        let mut present = 1u64;
        let (label, integers_and_categories) = self.block.split_first_mut()?;
        let (integers, categories) = integers_and_categories.split_at_mut(INTEGERS);

        label[row] = 0;
        if labelled {
            let &[digit, b'\t'] = text.get(p..p + 2)? else { return None };
            let value = digit.wrapping_sub(b'0');
            if value > 1 {
                return None;
            }
            label[row] = u32::from(value);
            p += 2;
        }

        for (i, column) in integers.iter_mut().enumerate() {
            let short = text.get(p..p + 8).and_then(|bytes| short_int(bytes.try_into().ok()?));
            let (value, digits) = match short {
                Some(short) => short,
                None => int_field(text, p)?,
            };
            p += digits + 1;
            column[row] = value;
            present |= u64::from(digits > 0) << (1 + i);
        }

        let (last, before) = categories.split_last_mut()?;
        for (i, column) in before.iter_mut().enumerate() {
            let (value, digits) = hex(text, p, b'\t')?;
            p += digits + 1;
            if text[p - 1] != b'\t' {
                return None;
            }
            column[row] = value;
            present |= u64::from(digits > 0) << (1 + INTEGERS + i);
        }
        let (value, digits) = hex(text, p, b'\n')?;
        p += digits;
        p += match text.get(p..p + 2) {
            Some(b"\r\n") => 2,
            _ if text.get(p) == Some(&b'\n') => 1,
            _ => return None,
        };
        last[row] = value;
        present |= u64::from(digits > 0) << (INTEGERS + CATEGORIES);
        self.present.push(present);
        self.block_rows = row + 1;
        if self.block_rows == BLOCK {
            self.empty_block();
        }
        Some(p)
    }
}

/// Up to eight hex digits before a byte that ends a field, most often `end`, and how many they are. `None` for anything else.
#[inline]
fn hex(text: &[u8], at: usize, end: u8) -> Option<(u32, usize)> {
    let usual = text.get(at..at + 9).and_then(|bytes| eight_or_none(bytes.try_into().ok()?, end));
    usual.or_else(|| hex_field(text, at))
}

impl LineParser for BatchBuilder {
    fn rows(&self) -> usize {
        self.present.len()
    }

    fn is_full(&self) -> bool {
        self.rows() == self.capacity
    }

    #[inline]
    fn push(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let pushed = self.push_line(text, at, self.labelled);
        if pushed.is_some() || !self.label_optional {
            return pushed;
        }
        // The number of fields tells whether a line has a label.
        let pushed = self.push_line(text, at, !self.labelled)?;
        self.labelled = !self.labelled;
        Some(pushed)
    }

    fn take(&mut self) -> Result<RecordBatch, Fault> {
        self.empty_block();
        let batch = to_batch(&self.schema, std::mem::take(&mut self.values), &self.present);
        self.renew();
        match self.categories {
            Categories::Int => Ok(batch),
            Categories::Hex => with_hex_categories(&batch),
        }
    }

    fn diagnose(&self, line: &[u8]) -> BadRow {
        if self.label_optional { diagnose_unlabelled(line) } else { diagnose(line) }
    }
}

/// Columns of 32-bit values and row masks as a batch of Criteo's schema. Each column has at least as many values as there
/// are masks; bit c of a mask says whether column c has a value in that row.
pub(crate) fn to_batch(schema: &SchemaRef, values: Vec<Vec<u32>>, present: &[u64]) -> RecordBatch {
    let rows = present.len();
    let columns: Vec<ArrayRef> = values
        .into_iter()
        .zip(nulls(present))
        .enumerate()
        .map(|(at, (values, nulls))| {
            let buffer = Buffer::from_vec(values);
            if at <= INTEGERS {
                Arc::new(Int32Array::new(ScalarBuffer::new(buffer, 0, rows), nulls)) as ArrayRef
            } else {
                Arc::new(UInt32Array::new(ScalarBuffer::new(buffer, 0, rows), nulls))
            }
        })
        .collect();
    RecordBatch::try_new(Arc::clone(schema), columns).expect("the columns are made to the schema")
}

/// Row masks into one validity bitmap per column; `None` for a column without a missing value.
fn nulls(present: &[u64]) -> Vec<Option<NullBuffer>> {
    let mut words = vec![vec![0u64; present.len().div_ceil(64)]; COLUMNS];
    for (block, masks) in present.chunks(64).enumerate() {
        let mut square = [0u64; 64];
        square[..masks.len()].copy_from_slice(masks);
        transpose(&mut square);
        for (column, bits) in words.iter_mut().zip(square) {
            column[block] = bits;
        }
    }
    words
        .into_iter()
        .map(|words| {
            let bits = BooleanBuffer::new(Buffer::from_vec(words), 0, present.len());
            Some(NullBuffer::new(bits)).filter(|nulls| nulls.null_count() > 0)
        })
        .collect()
}

/// Transposes 64 x 64 bits: bit j of word i becomes bit i of word j (Warren, Hacker's Delight, 7-3).
fn transpose(square: &mut [u64; 64]) {
    let mut width = 32;
    let mut mask = u64::MAX >> 32;
    while width > 0 {
        let mut i = 0;
        while i < 64 {
            let swap = ((square[i] >> width) ^ square[i + width]) & mask;
            square[i] ^= swap << width;
            square[i + width] ^= swap;
            i = (i + width + 1) & !width;
        }
        width >>= 1;
        mask ^= mask << width;
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Int32Type, UInt32Type};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn transposing_moves_each_bit(words in prop::collection::vec(any::<u64>(), 64)) {
            let mut square: [u64; 64] = words.clone().try_into().unwrap();
            transpose(&mut square);
            for (i, word) in words.iter().enumerate() {
                for (j, column) in square.iter().enumerate() {
                    prop_assert_eq!(column >> i & 1, word >> j & 1);
                }
            }
        }

        #[test]
        fn lines_are_read_as_split_and_parse_read_them(
            rows in prop::collection::vec((0u32..2,
                prop::collection::vec(prop::option::of(any::<i32>()), INTEGERS),
                prop::collection::vec(prop::option::of((any::<u32>(), any::<bool>())), CATEGORIES), any::<bool>()), 1..80)
        ) {
            let mut text = String::new();
            for (label, ints, cats, cr) in &rows {
                let ints = ints.iter().map(|v| v.map_or(String::new(), |v| v.to_string()));
                let cats = cats.iter().map(|v| v.map_or(String::new(), |(v, long)| if long { format!("{v:08x}") } else { format!("{v:x}") }));
                let fields: Vec<_> = std::iter::once(label.to_string()).chain(ints).chain(cats).collect();
                text += &fields.join("\t");
                text += if *cr { "\r\n" } else { "\n" };
            }
            let mut columns = BatchBuilder::new(Categories::Int, rows.len());
            let mut at = 0;
            for _ in &rows {
                at = columns.push(text.as_bytes(), at).unwrap();
            }
            prop_assert_eq!(at, text.len());
            prop_assert!(columns.is_full());
            let batch = columns.take().unwrap();
            for (r, (label, ints, cats, _)) in rows.iter().enumerate() {
                prop_assert_eq!(batch.column(0).as_primitive::<Int32Type>().value(r), *label as i32);
                for (i, v) in ints.iter().enumerate() {
                    let column = batch.column(1 + i).as_primitive::<Int32Type>();
                    prop_assert_eq!(column.is_valid(r).then(|| column.value(r)), *v);
                }
                for (i, v) in cats.iter().enumerate() {
                    let column = batch.column(1 + INTEGERS + i).as_primitive::<UInt32Type>();
                    prop_assert_eq!(column.is_valid(r).then(|| column.value(r)), v.map(|(v, _)| v));
                }
            }
        }

        #[test]
        fn a_line_without_its_label_is_the_same_row_if_labels_are_optional(
            labels in prop::collection::vec(prop::option::of(0u32..2), 1..20), first in prop::sample::select(vec!["", "0", "1", "17"])
        ) {
            let fields = format!("{first}\t{}", "7\t".repeat(COLUMNS - 3) + "ff");
            let lines = |label: Option<u32>| label.map_or(String::new(), |label| format!("{label}\t")) + &fields + "\n";
            let text: String = labels.iter().copied().map(lines).collect();
            let mut columns = BatchBuilder::new(Categories::Int, labels.len()).label_optional(true);
            let mut at = 0;
            for _ in &labels {
                at = columns.push(text.as_bytes(), at).unwrap();
            }
            prop_assert_eq!(at, text.len());
            let batch = columns.take().unwrap();
            let labelled: String = labels.iter().map(|label| lines(Some(label.unwrap_or(0)))).collect();
            let mut expected = BatchBuilder::new(Categories::Int, labels.len());
            let mut at = 0;
            for label in &labels {
                prop_assert_eq!(expected.push(lines(None).as_bytes(), 0), None, "{:?}", label);
                at = expected.push(labelled.as_bytes(), at).unwrap();
            }
            prop_assert_eq!(batch, expected.take().unwrap());
        }

        #[test]
        fn no_bytes_make_it_panic(text in prop::collection::vec(prop::sample::select(b"01\t\t\t\n\r-9afG\xff".to_vec()), 0..200)) {
            let mut columns = BatchBuilder::new(Categories::Int, 4).label_optional(text.len() % 2 == 0);
            prop_assert!(columns.push(&text, 0).is_none_or(|end| end <= text.len()));
        }
    }
}
