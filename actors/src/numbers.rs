//! Numbers in text for people.

/// Writes a number with commas: `12,345,678`.
pub fn commas(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 file`, `2,000 files`, `3 record batches`.
pub fn counted(n: impl TryInto<u64>, noun: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    let ending = match n {
        1 => "",
        _ if noun.ends_with("ch") && !noun.ends_with("epoch") => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", commas(n))
}

/// A number of bytes: `812 bytes`, `6.2 kB`, `3.4 MB`, `1.2 GB`. A kB has 1,000 bytes.
pub fn size(bytes: u64) -> String {
    if bytes < 1000 {
        return counted(bytes, "byte");
    }
    let (mut number, mut unit) = (bytes as f64 / 1e3, "kB");
    for larger in ["MB", "GB", "TB"] {
        // What would be written as 1000.0 is 1.0 of the next unit.
        if number >= 999.95 {
            (number, unit) = (number / 1e3, larger);
        }
    }
    format!("{number:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_the_largest_unit_of_which_it_has_one() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (812, "812 bytes"),
            (999, "999 bytes"),
            (1000, "1.0 kB"),
            (6_164, "6.2 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (3_400_000, "3.4 MB"),
            (91_512_000, "91.5 MB"),
            (999_960_000, "1.0 GB"),
            (1_234_567_890, "1.2 GB"),
            (12_000_000_000_000, "12.0 TB"),
            (u64::MAX, "18446744.1 TB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(
            [0u64, 1, 12_345].map(|n| counted(n, "row group")),
            ["0 row groups", "1 row group", "12,345 row groups"]
        );
        assert_eq!(
            [counted(3usize, "record batch"), counted(3, "epoch"), counted(3, "whole epoch")],
            ["3 record batches", "3 epochs", "3 whole epochs"]
        );
    }
}
