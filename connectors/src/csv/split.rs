//! Where the fields of a line of CSV end.

use super::options::CsvOptions;
use crate::text::bad_row::Reason;

/// Where the field that begins at `at` ends: the next delimiter or line end; usual fields are searched eight bytes at a time.
#[inline]
pub(super) fn field_end(text: &[u8], at: usize, delimiter: u8) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    if let Some(Ok(bytes)) = text.get(at..at + 16).map(<[u8; 16]>::try_from) {
        let word = u128::from_le_bytes(bytes);
        for half in 0..2 {
            let word = (word >> (64 * half)) as u64;
            // The lowest byte that is zero has its high bit set, and none below it has (Warren, Hacker's Delight, 6-1).
            let zeros = |word: u64| word.wrapping_sub(ONES) & !word & (0x80 * ONES);
            let ends = zeros(word ^ (u64::from(delimiter) * ONES)) | zeros(word ^ (u64::from(b'\n') * ONES));
            if ends != 0 {
                return Some(at + 8 * half + ends.trailing_zeros() as usize / 8);
            }
        }
    }
    memchr::memchr2(delimiter, b'\n', text.get(at..)?).map(|length| at + length)
}

/// Reads the quoted field that begins at `at` into `field`, and returns the place of the delimiter or line end behind it.
pub(super) fn unquote(text: &[u8], at: usize, delimiter: u8, field: &mut Vec<u8>) -> Result<usize, Reason> {
    field.clear();
    let mut from = at + 1;
    loop {
        let rest = &text[from..];
        let quote = memchr::memchr2(b'"', b'\n', rest).filter(|&at| rest[at] == b'"').ok_or(Reason::OpenQuote)?;
        field.extend_from_slice(&rest[..quote]);
        match &rest[quote + 1..] {
            [b'"', ..] => field.push(b'"'),
            [b'\r', b'\n', ..] => return Ok(from + quote + 2),
            [b'\n', ..] => return Ok(from + quote + 1),
            [next, ..] if *next == delimiter => return Ok(from + quote + 1),
            _ => return Err(Reason::TextAfterQuote),
        }
        from += quote + 2;
    }
}

/// The fields of one line, which comes without its line end.
pub(super) fn split_line(line: &[u8], options: &CsvOptions) -> Result<Vec<Vec<u8>>, Reason> {
    let (text, delimiter) = ([line, b"\n"].concat(), options.delimiter());
    let (mut fields, mut field, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        let end = if options.quotes && text[at] == b'"' {
            unquote(&text, at, delimiter, &mut field)?
        } else {
            let end = field_end(&text, at, delimiter).ok_or(Reason::TooFewFields)?;
            field.clear();
            field.extend_from_slice(&text[at..end]);
            end
        };
        fields.push(field.clone());
        if text[end] == b'\n' {
            return Ok(fields);
        }
        at = end + 1;
    }
}
