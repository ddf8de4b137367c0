//! Numbers in text.

/// A number, as the standard library reads it: `12`, `-3.5`, `1e-3`, `nan`, `inf`. `None` for anything else.
#[inline]
pub(crate) fn parse_number(field: &[u8]) -> Option<f64> {
    match short_integer(field) {
        Some(value) => Some(value as f64),
        None => long_number(field),
    }
}

/// An integer of 64 bits, with a sign or without. `None` for anything else.
#[inline]
pub(crate) fn parse_integer(field: &[u8]) -> Option<i64> {
    match short_integer(field) {
        Some(value) => Some(value),
        None => std::str::from_utf8(field).ok()?.parse().ok(),
    }
}

/// 1 to 15 digits, with a minus sign or without: the usual values, and exact as a floating-point number.
#[inline]
fn short_integer(field: &[u8]) -> Option<i64> {
    let digits = field.strip_prefix(b"-").unwrap_or(field);
    // -0 is a number of its own.
    if digits.is_empty() || digits.len() > 15 || (digits.len() < field.len() && digits[0] == b'0') {
        return None;
    }
    let mut value = 0i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if digits.len() < field.len() { -value } else { value })
}

#[inline(never)]
fn long_number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_what_the_standard_library_reads(text in "[-+]?[0-9]{0,18}(\\.[0-9]{0,4})?(e[-+]?[0-9])?| ?nan|x") {
            let same = |a: Option<f64>, b: Option<f64>| a.map(f64::to_bits) == b.map(f64::to_bits);
            prop_assert!(same(parse_number(text.as_bytes()), text.parse().ok()), "{}", text);
            prop_assert_eq!(parse_integer(text.as_bytes()), text.parse::<i64>().ok(), "{}", text);
        }
    }
}
