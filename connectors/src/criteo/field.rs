//! One field of a Criteo line: integers and hex categories, the usual ones eight bytes at a time.
//!
//! Comes in: bytes. Goes out: a number and how many bytes it took, or `None`. Nothing blocks.

/// Up to seven digits that end in a tab, and how many they are; their number is not looked at by a branch, which would be
/// mispredicted in every other field. `None` for anything else.
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

/// Eight hex digits at once, in the bytes of one word. `None` when one of them is not a hex digit.
#[inline]
pub(super) fn hex8(digits: &[u8]) -> Option<u32> {
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
    }
}
