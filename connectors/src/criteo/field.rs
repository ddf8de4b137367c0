//! Parses one field of a Criteo line, integers and hex categories, the usual ones eight bytes at a time.

use std::hint::select_unpredictable;

/// Up to seven digits that end in a tab, and how many they are; no branch depends on their number, because it would be mispredicted in
/// every other field. `None` for anything else.
#[inline]
pub(super) fn short_int(bytes: [u8; 8]) -> Option<(u32, usize)> {
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
pub(super) fn int_field(text: &[u8], at: usize) -> Option<(u32, usize)> {
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
pub(super) fn hex_field(text: &[u8], at: usize) -> Option<(u32, usize)> {
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

/// Eight hex digits before `end`, or nothing before it, and how many digits they are; no branch depends on which, because it would be
/// mispredicted in columns in which many values are missing. `None` for anything else.
#[inline]
pub(super) fn eight_or_none(bytes: &[u8; 9], end: u8) -> Option<(u32, usize)> {
    let &[digits @ .., after] = bytes;
    let none = digits[0] == end;
    let (value, fine) = hex8(digits);
    if !none & !(fine & (after == end)) {
        return None;
    }
    Some((select_unpredictable(none, 0, value), select_unpredictable(none, 0, 8)))
}

/// Eight hex digits, two at a time, and whether they are hex digits.
#[inline]
fn hex8(digits: [u8; 8]) -> (u32, bool) {
    let word = u64::from_le_bytes(digits);
    let [a, b, c, d] = [0, 16, 32, 48].map(|shift| u32::from(PAIRS[(word >> shift & 0xffff) as usize]));
    (a << 24 | b << 16 | c << 8 | d, (a | b | c | d) & NOT_HEX == 0)
}

/// Stands in [`PAIRS`] for what is not two hex digits.
const NOT_HEX: u32 = 0x100;

/// The value of each pair of hex digits, indexed by its two bytes as a little-endian number. Digits use less than 4 KiB of the
/// 128 KiB, which stay in the L1 cache: 1.8 ns for eight digits, against 3.0 ns by arithmetic on the whole word.
static PAIRS: [u16; 1 << 16] = {
    let digits = b"0123456789abcdefABCDEF";
    let mut pairs = [NOT_HEX as u16; 1 << 16];
    let mut high = 0;
    while high < digits.len() {
        let mut low = 0;
        while low < digits.len() {
            let (h, l) = (if high < 16 { high } else { high - 6 }, if low < 16 { low } else { low - 6 });
            pairs[digits[high] as usize | (digits[low] as usize) << 8] = (h << 4 | l) as u16;
            low += 1;
        }
        high += 1;
    }
    pairs
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn eight_digits_at_once_are_what_the_standard_library_reads(digits in prop::array::uniform8(any::<u8>())) {
            let slow = std::str::from_utf8(&digits).ok()
                .filter(|s| s.bytes().all(|b| b.is_ascii_hexdigit()))
                .and_then(|s| u32::from_str_radix(s, 16).ok());
            let (value, fine) = hex8(digits);
            prop_assert_eq!(fine.then_some(value), slow);
        }

        #[test]
        fn usual_categories_are_what_the_long_way_reads(
            bytes in prop::collection::vec(prop::sample::select(b"09afAF\t\n\rg".to_vec()), 9),
            hex: u32, length in prop::sample::select(vec![0_usize, 1, 7, 8, 9]), usual: bool,
            end in prop::sample::select(b"\t\n".to_vec())
        ) {
            let mut text = if usual { format!("{hex:09x}").into_bytes() } else { bytes };
            if usual && length < 9 {
                // The digits after the end belong to the next field.
                text[0] = b'7';
                text[length] = end;
            }
            let slow = hex_field(&text, 0).filter(|&(_, digits)| text[digits] == end && matches!(digits, 0 | 8));
            prop_assert_eq!(eight_or_none(&text.try_into().unwrap(), end), slow);
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
            prop_assert_eq!(hex8(digits), (number, true));
        }
    }
}
