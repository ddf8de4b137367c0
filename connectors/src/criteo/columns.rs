//! Criteo lines into columns: one pass over the bytes, no allocation per field or line.
//!
//! Comes in: text. Goes out: a `RecordBatch` of up to a fixed number of rows. A line that is not right leaves no
//! trace, [`crate::criteo::bad`] says what is wrong with it. Nothing blocks.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, UInt32Array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;

use super::schema::{CATEGORIES, COLUMNS, Categories, INTEGERS, criteo_schema};

/// Columns being filled.
pub(crate) struct Columns {
    /// Per column one value per row; missing ones are 0. Integers are stored by their bits.
    values: Vec<Vec<u32>>,
    /// Per row one bit per column: whether it has a value.
    present: Vec<u64>,
    rows: usize,
    capacity: usize,
    schema: SchemaRef,
}

impl Columns {
    pub(crate) fn new(capacity: usize) -> Self {
        let mut columns = Self {
            values: Vec::new(),
            present: Vec::new(),
            rows: 0,
            capacity: capacity.max(1),
            schema: criteo_schema(Categories::Int),
        };
        columns.renew();
        columns
    }

    fn renew(&mut self) {
        self.values = (0..COLUMNS).map(|_| vec![0; self.capacity]).collect();
        self.present = vec![0; self.capacity];
        self.rows = 0;
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn is_full(&self) -> bool {
        self.rows == self.capacity
    }

    /// Takes the line that begins at `at` and ends in `\n` (or `\r\n`); gives the place behind it. `None` when it is
    /// not a good row or has no end: then nothing was taken. There must be room.
    #[inline]
    pub(crate) fn push(&mut self, text: &[u8], at: usize) -> Option<usize> {
        let row = self.rows;
        let mut p = at;
        let mut present = 1u64;
        let (label, integers_and_categories) = self.values.split_first_mut()?;
        let (integers, categories) = integers_and_categories.split_at_mut(INTEGERS);

        let &[digit, b'\t'] = text.get(p..p + 2)? else { return None };
        let value = digit.wrapping_sub(b'0');
        if value > 1 {
            return None;
        }
        label[row] = u32::from(value);
        p += 2;

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
            let (value, digits) = match text.get(p..p + 9) {
                Some(&[b'\t', ..]) => (0, 0),
                Some(&[ref digits @ .., b'\t']) => match hex8(digits) {
                    Some(value) => (value, 8),
                    None => hex_field(text, p)?,
                },
                _ => hex_field(text, p)?,
            };
            p += digits + 1;
            if text[p - 1] != b'\t' {
                return None;
            }
            column[row] = value;
            present |= u64::from(digits > 0) << (1 + INTEGERS + i);
        }
        let (value, digits) = hex_field(text, p)?;
        p += digits;
        p += match text.get(p..p + 2) {
            Some(b"\r\n") => 2,
            _ if text.get(p) == Some(&b'\n') => 1,
            _ => return None,
        };
        last[row] = value;
        present |= u64::from(digits > 0) << INTEGERS + CATEGORIES;
        self.present[row] = present;
        self.rows += 1;
        Some(p)
    }

    /// What was taken so far, as a batch; begins anew.
    pub(crate) fn take(&mut self) -> RecordBatch {
        let batch = to_batch(&self.schema, std::mem::take(&mut self.values), &self.present[..self.rows]);
        self.renew();
        batch
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

/// Up to seven digits that end in a tab, and how many they are; their number is not looked at by a branch, which would be
/// mispredicted in every other field. `None` for anything else.
#[inline]
fn short_int(bytes: [u8; 8]) -> Option<(u32, usize)> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(bytes);
    let tabs = word ^ (u64::from(b'\t') * ONES);
    // The lowest byte that is zero has its high bit set, and none below it has (Warren, Hacker's Delight, 6-1).
    let tabs = tabs.wrapping_sub(ONES) & !tabs & (0x80 * ONES);
    if tabs == 0 {
        return None;
    }
    let bits = tabs.trailing_zeros() & !7;
    // The digits in the upper bytes, zeros below: eight digits, the first in the lowest byte.
    let digits = (word << 8) << (56 - bits) | (0x30 * ONES) >> bits;
    if (digits & (0xf0 * ONES)) | ((digits.wrapping_add(0x06 * ONES) & (0xf0 * ONES)) >> 4) != 0x33 * ONES {
        return None;
    }
    let pairs = (digits & (0x0f * ONES)).wrapping_mul(10 << 8 | 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_ffff_0000_ffff;
    let value = fours.wrapping_mul(10_000 << 32 | 1) >> 32;
    Some((value as u32, bits as usize / 8))
}

/// An integer of 32 bits (by its bits) that ends in a tab, and how many bytes it has. `None` for anything else.
#[inline(never)]
fn int_field(text: &[u8], at: usize) -> Option<(u32, usize)> {
    let negative = *text.get(at)? == b'-';
    let start = at + usize::from(negative);
    let mut p = start;
    let mut value = 0u64;
    loop {
        let byte = *text.get(p)?;
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let fine = byte == b'\t' && (p > start || !negative) && value <= i32::MAX as u64 + u64::from(negative);
            let value = if negative { (value as u32).wrapping_neg() } else { value as u32 };
            return fine.then_some((value, p - at));
        }
        value = value * 10 + u64::from(digit);
        p += 1;
        if p - start > 10 {
            return None;
        }
    }
}

/// Up to eight hex digits until a byte that ends a field (which is there), and how many they are. `None` for anything
/// else.
#[inline(never)]
fn hex_field(text: &[u8], at: usize) -> Option<(u32, usize)> {
    let mut p = at;
    let mut value = 0u32;
    loop {
        let byte = *text.get(p)?;
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\t' | b'\n' | b'\r' => return Some((value, p - at)),
            _ => return None,
        };
        if p - at == 8 {
            return None;
        }
        value = value << 4 | u32::from(digit);
        p += 1;
    }
}

/// Eight hex digits at once, in the bytes of one word. `None` when one of them is not a hex digit.
#[inline]
fn hex8(digits: &[u8]) -> Option<u32> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let word = u64::from_be_bytes(digits.try_into().ok()?);
    // Below 0x80 no sum carries into the next byte; bytes from 0x80 are refused at the end.
    let low = word & !HIGH;
    let lower = low | (0x20 * ONES);
    let digit = (low + 0x50 * ONES) & !(low + 0x46 * ONES) & HIGH;
    let letter = (lower + 0x1f * ONES) & !(lower + 0x19 * ONES) & HIGH;
    if (digit | letter) & !(word & HIGH) != HIGH {
        return None;
    }
    let nibbles = (low & (0x0f * ONES)) + (letter >> 7) * 9;
    let pairs = (nibbles | nibbles >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    Some((fours | fours >> 16) as u32)
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
        fn eight_digits_at_once_are_what_the_standard_library_reads(digits in prop::array::uniform8(any::<u8>())) {
            let slow = std::str::from_utf8(&digits).ok()
                .filter(|s| s.bytes().all(|b| b.is_ascii_hexdigit()))
                .and_then(|s| u32::from_str_radix(s, 16).ok());
            prop_assert_eq!(hex8(&digits), slow);
        }

        #[test]
        fn short_integers_are_what_the_long_way_reads(
            digits in prop::collection::vec(prop::sample::select(b"0123456789\t\t-a/:\xff".to_vec()), 8)
        ) {
            let bytes: [u8; 8] = digits.clone().try_into().unwrap();
            let mut text = digits.clone();
            text.push(b'\n');
            let slow = int_field(&text, 0).filter(|_| text[0] != b'-');
            match short_int(bytes) {
                Some(short) => prop_assert_eq!(Some(short), slow),
                None => prop_assert!(slow.is_none_or(|(_, length)| length > 7)),
            }
        }

        #[test]
        fn every_short_integer(number in 0u32..10_000_000, more: u32) {
            let mut bytes: Vec<u8> = format!("{number}\t{more:08}").into_bytes();
            bytes.truncate(8);
            prop_assert_eq!(short_int(bytes.try_into().unwrap()), Some((number, number.to_string().len())));
        }

        #[test]
        fn every_number_in_either_case(number: u32, upper: u8) {
            let mut digits: [u8; 8] = format!("{number:08x}").into_bytes().try_into().unwrap();
            for (i, digit) in digits.iter_mut().enumerate() {
                if upper >> i & 1 == 1 { digit.make_ascii_uppercase(); }
            }
            prop_assert_eq!(hex8(&digits), Some(number));
        }

        #[test]
        fn transposing_moves_each_bit(words in prop::collection::vec(any::<u64>(), 64)) {
            let mut square: [u64; 64] = words.clone().try_into().unwrap();
            transpose(&mut square);
            for i in 0..64 {
                for j in 0..64 {
                    prop_assert_eq!(square[j] >> i & 1, words[i] >> j & 1);
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
            let mut columns = Columns::new(rows.len());
            let mut at = 0;
            for _ in &rows {
                at = columns.push(text.as_bytes(), at).unwrap();
            }
            prop_assert_eq!(at, text.len());
            prop_assert!(columns.is_full());
            let batch = columns.take();
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
        fn no_bytes_make_it_panic(text in prop::collection::vec(prop::sample::select(b"01\t\t\t\n\r-9afG\xff".to_vec()), 0..200)) {
            let mut columns = Columns::new(4);
            prop_assert!(columns.push(&text, 0).is_none_or(|end| end <= text.len()));
        }
    }
}
