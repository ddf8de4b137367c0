//! How text writes whole numbers and truth values. A slot without a kind takes them as text, so `79` and `79.0` have different keys.

use std::fmt;

use forebay_actors::counted;
use serde::{Deserialize, Serialize};

use crate::text::number::parse_truth;

/// Values of a column that other programs write in another way: whole numbers not as `79`, or truth values not as `true`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherSpelling {
    /// How many values.
    pub values: u64,
    /// The first of them, such as `79.0`, `079` or `True`.
    pub first: String,
    /// What other programs write for it: `79` or `true`.
    pub usual: String,
}

/// The longest text that is kept.
const LONGEST: usize = 40;

/// Above it, floating-point numbers do not hold all whole numbers.
const LARGEST_WHOLE: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;

/// Counts the values of one column.
#[derive(Clone, Debug, Default)]
pub(super) struct Spelling {
    other: OtherSpelling,
    /// Whether the column has fractions: then it holds measurements, and is no slot without a kind.
    fractions: bool,
}

impl Spelling {
    /// Counts a text that is a number or a truth value.
    pub(super) fn add(&mut self, text: &str, number: f64) {
        // No program writes `1e39` as a whole number.
        let is_large = number.abs() > LARGEST_WHOLE && text.contains(['e', 'E']);
        self.fractions |= number.fract() != 0.0 || is_large;
        if self.fractions || is_usual(text) {
            return;
        }
        if self.other.values == 0 {
            let first = text.chars().take(LONGEST).collect();
            self.other = OtherSpelling { values: 0, first, usual: usual(text, number) };
        }
        self.other.values += 1;
    }

    /// The values in another spelling, if there are some and the column has no fractions.
    pub(super) fn finish(&mut self) -> Option<OtherSpelling> {
        let other = std::mem::take(&mut self.other);
        (other.values > 0 && !self.fractions).then_some(other)
    }
}

/// Whether a whole number is written in digits alone, without zeros in front, or a truth value in small letters.
fn is_usual(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    let whole = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) && (digits[0] != b'0' || digits.len() == 1);
    whole || ["true", "false"].contains(&text)
}

fn usual(text: &str, number: f64) -> String {
    let text = text.trim_ascii();
    if parse_truth(text.as_bytes()).is_some() {
        return text.to_ascii_lowercase();
    }
    // All digits, also of integers that a floating-point number rounds.
    let digits = number != 0.0 && text.bytes().all(|byte| byte.is_ascii_digit());
    let usual = if digits { text.trim_start_matches('0').to_owned() } else { number.to_string() };
    usual.chars().take(LONGEST).collect()
}

impl fmt::Display for OtherSpelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { values, first, usual } = self;
        let (count, are) = (counted(*values, "value"), if *values == 1 { "is" } else { "are" });
        write!(
            f,
            "{count} {are} written as `{first}`, not as `{usual}`: a slot without a kind takes both as text, with different keys"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Option<(u64, String, String)> {
        let mut spelling = Spelling::default();
        for text in texts {
            let truth = parse_truth(text.as_bytes()).map(|truth| f64::from(u8::from(truth)));
            spelling.add(text, truth.unwrap_or_else(|| text.trim_ascii().parse().unwrap()));
        }
        spelling.finish().map(|OtherSpelling { values, first, usual }| (values, first, usual))
    }

    #[test]
    fn whole_numbers_with_a_point_or_zeros_and_truths_with_large_letters_are_spelled_otherwise() {
        let found = |values, first: &str, usual: &str| Some((values, first.to_owned(), usual.to_owned()));
        assert_eq!(of(&["79", "80.0", "0", "81.0", "-7"]), found(2, "80.0", "80"));
        assert_eq!(of(&["0000012345678901234567"]), found(1, "0000012345678901234567", "12345678901234567"));
        assert_eq!(of(&[" 7", "1e3", "00"]), found(3, " 7", "7"));
        assert_eq!(of(&["00", "0"]), found(1, "00", "0"));
        assert_eq!(of(&["true", "False"]), found(1, "False", "false"));
        for usual in
            [&["79", "-80", "0"][..], &["true", "false"], &["3.5", "4.0", "5"], &["4.0", "3.5"], &["4.0", "1e39"], &[]]
        {
            assert_eq!(of(usual), None, "{usual:?}");
        }
    }
}
