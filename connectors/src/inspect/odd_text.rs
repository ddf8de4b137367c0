//! The one text in a column of numbers, such as `\N` or `NA`: most likely a missing value.

use serde::{Deserialize, Serialize};

/// A text beside which a column has only numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OddText {
    /// How many values.
    pub values: u64,
    /// The text.
    pub text: String,
}

/// The longest text that is taken for a missing value, in bytes.
const LONGEST: usize = 16;

/// Counts the values of one column.
#[derive(Clone, Debug, Default)]
pub(super) struct OddTexts {
    found: OddText,
    numbers: u64,
    /// The column has several texts, or a long one: it is a column of text.
    several: bool,
}

impl OddTexts {
    /// Counts a text.
    pub(super) fn add(&mut self, text: &str, is_number: bool) {
        if is_number {
            self.numbers += 1;
            return;
        }
        if self.found.values == 0 && text.len() <= LONGEST {
            text.clone_into(&mut self.found.text);
        }
        self.several |= self.found.text != text;
        self.found.values += 1;
    }

    /// Whether no further text changes the result.
    pub(super) fn is_settled(&self) -> bool {
        self.several
    }

    /// The text, if it is the only one beside numbers.
    pub(super) fn finish(&mut self) -> Option<OddText> {
        let found = std::mem::take(&mut self.found);
        (found.values > 0 && self.numbers > 0 && !self.several).then_some(found)
    }
}
