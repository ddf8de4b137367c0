//! Numbers in text.

use forebay_base::parse_floor;

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

/// An integer of 64 bits, with a sign or without; one that is greater than `i64::MAX` wraps. `None` for anything else.
#[inline]
pub(crate) fn parse_wrapping(field: &[u8]) -> Option<i64> {
    match parse_integer(field) {
        Some(value) => Some(value),
        None => std::str::from_utf8(field).ok()?.parse::<u64>().ok().map(|value| value as i64),
    }
}

/// An integer of 64 bits, or a number rounded down to one. `None` for anything else.
#[inline]
pub(crate) fn parse_rounded_down(field: &[u8]) -> Option<i64> {
    match short_integer(field) {
        Some(value) => Some(value),
        None => parse_floor(std::str::from_utf8(field).ok()?),
    }
}

/// A boolean as other programs write it, in any case. `None` for anything else.
pub(crate) fn parse_truth(field: &[u8]) -> Option<bool> {
    match trimmed(field) {
        field if field.eq_ignore_ascii_case(b"true") => Some(true),
        field if field.eq_ignore_ascii_case(b"false") => Some(false),
        _ => None,
    }
}

/// The expectation of a number that [has a comma](has_comma).
pub(crate) const WITHOUT_COMMA: &str =
    "without a comma: its fraction begins with a point, and thousands are not separated";

/// Whether a text is `1,5`, of a program in a language with a decimal comma, or `1,500`.
pub(crate) fn has_comma(text: &str) -> bool {
    text.contains(',') && text.replace([',', '.'], "").parse::<i64>().is_ok()
}

/// A field without the spaces and tabs around it: they are no part of a number.
#[inline(never)]
pub(crate) fn trimmed(field: &[u8]) -> &[u8] {
    let field = field.trim_ascii_start();
    field.trim_ascii_end()
}

/// Whether a number would lose something of its text: zeros in front, or the last digits of an integer of more than 64 bits.
#[inline]
pub(crate) fn loses_digits(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").or(field.strip_prefix(b"+")).unwrap_or(field);
    let zeros = digits.len() > 1 && digits[0] == b'0' && digits[1].is_ascii_digit();
    zeros || (digits.len() > 15 && digits.iter().all(u8::is_ascii_digit) && parse_integer(field).is_none())
}

/// Whether an integer has more digits than a floating-point number holds.
#[inline]
pub(crate) fn is_rounded(field: &[u8]) -> bool {
    let digits = field.strip_prefix(b"-").or(field.strip_prefix(b"+")).unwrap_or(field);
    digits.len() > 15
        && digits.iter().all(u8::is_ascii_digit)
        && parse_integer(field).is_none_or(|value| value as f64 as i128 != i128::from(value))
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

    #[test]
    fn truths_are_read_in_any_case() {
        for (text, truth) in [("true", Some(true)), ("False", Some(false)), (" TRUE ", Some(true)), ("yes", None)] {
            assert_eq!(parse_truth(text.as_bytes()), truth, "{text}");
        }
    }

    #[test]
    fn integers_that_a_number_does_not_hold_are_rounded() {
        for (text, rounded) in [
            ("9007199254740992", false),
            ("9007199254740993", true),
            ("-12345678901234567", true),
            ("9223372036854775807", true),
            ("9223372036854775808", true),
            ("1.2345678901234567", false),
            ("12", false),
        ] {
            assert_eq!(is_rounded(text.as_bytes()), rounded, "{text}");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_what_the_standard_library_reads(text in "[-+]?[0-9]{0,20}(\\.[0-9]{0,4})?(e[-+]?[0-9])?| ?nan|x") {
            let same = |a: Option<f64>, b: Option<f64>| a.map(f64::to_bits) == b.map(f64::to_bits);
            prop_assert!(same(parse_number(text.as_bytes()), text.parse().ok()), "{}", text);
            prop_assert_eq!(parse_integer(text.as_bytes()), text.parse::<i64>().ok(), "{}", text);
            let wrapped = text.parse::<i64>().ok().or(text.parse::<u64>().ok().map(|value| value as i64));
            prop_assert_eq!(parse_wrapping(text.as_bytes()), wrapped, "{}", text);
        }
    }
}
