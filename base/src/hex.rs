//! Hexadecimal numbers in text.

/// 1 to 16 hexadecimal digits in either case. `None` for anything else.
#[inline]
pub fn parse_hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    let mut value = 0;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        value = value << 4 | u64::from(digit);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hex_takes_1_to_16_digits_and_nothing_else() {
        assert_eq!(parse_hex(b"68fd1e64"), Some(0x68fd_1e64));
        assert_eq!(parse_hex(b"FFFFFFFFFFFFFFFF"), Some(u64::MAX));
        for odd in [&b""[..], b"g", b"-1", b"0x1", b"11112222333344445"] {
            assert_eq!(parse_hex(odd), None);
        }
    }

    proptest! {
        #[test]
        fn hex_is_what_the_standard_library_reads(text in "[0-9a-fA-F]{0,18}|0x1|-1|g") {
            let slow = u64::from_str_radix(&text, 16).ok().filter(|_| text.len() <= 16 && !text.starts_with('-'));
            prop_assert_eq!(parse_hex(text.as_bytes()), slow, "{}", text);
        }
    }
}
