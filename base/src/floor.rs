//! Numbers in text and in 64-bit floating point, rounded down to integers.

/// 2^63: integers below it have 64 bits.
const BEYOND_64_BITS: f64 = 9_223_372_036_854_775_808.0;

/// A number rounded down to an integer. `None` for NaN, and for a number beyond 64 bits.
#[inline]
pub fn floor_to_integer(number: f64) -> Option<i64> {
    let down = number.floor();
    (-BEYOND_64_BITS..BEYOND_64_BITS).contains(&down).then_some(down as i64)
}

/// A number in text, such as `12`, `-3.5` or `1.5e3`, rounded down to an integer. All digits count, also digits that a floating-point
/// number does not hold. `None` for anything else, and for a number beyond 64 bits.
pub fn parse_floor(text: &str) -> Option<i64> {
    if let Ok(integer) = text.parse() {
        return Some(integer);
    }
    let number: f64 = text.parse().ok()?;
    let parts = text.split_once('.').filter(|(_, fraction)| fraction.bytes().all(|byte| byte.is_ascii_digit()));
    match parts.map(|(whole, fraction)| (whole.parse::<i64>(), fraction)) {
        Some((Ok(whole), fraction)) => {
            let is_below = text.starts_with('-') && fraction.bytes().any(|digit| digit != b'0');
            whole.checked_sub(i64::from(is_below))
        }
        _ => floor_to_integer(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_down_to_64_bits() {
        for (number, integer) in [
            (1_700_000_000.75, Some(1_700_000_000)),
            (-0.25, Some(-1)),
            (-0.0, Some(0)),
            (-9_223_372_036_854_775_808.0, Some(i64::MIN)),
            (9_223_372_036_854_775_808.0, None),
            (1e300, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
            (f64::NEG_INFINITY, None),
        ] {
            assert_eq!(floor_to_integer(number), integer, "{number}");
        }
    }

    #[test]
    fn text_is_rounded_down_with_all_of_its_digits() {
        for (text, integer) in [
            ("12", Some(12)),
            ("1700000000.25", Some(1_700_000_000)),
            ("1700000000.0", Some(1_700_000_000)),
            ("-3.5", Some(-4)),
            ("-3.0", Some(-3)),
            ("-0.5", Some(-1)),
            (".5", Some(0)),
            ("-.5", Some(-1)),
            ("5.", Some(5)),
            ("+2.9", Some(2)),
            ("1.7e+09", Some(1_700_000_000)),
            ("1.5e3", Some(1500)),
            // Nanoseconds: the nearest floating-point number is 1790000000123456768.
            ("1790000000123456789.5", Some(1_790_000_000_123_456_789)),
            ("9223372036854775807.9", Some(i64::MAX)),
            ("9223372036854775808.0", None),
            ("-9223372036854775808.5", None),
            ("1e400", None),
            ("nan", None),
            ("inf", None),
            ("1.2.3", None),
            ("1,5", None),
            ("", None),
            (".", None),
            ("2026-11-20", None),
        ] {
            assert_eq!(parse_floor(text), integer, "{text}");
        }
    }
}
