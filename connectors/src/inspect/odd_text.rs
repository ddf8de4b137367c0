//! The one text in a column of numbers, such as `\N` or `NA`: most likely a missing value.

use forebay_actors::counted;
use serde::{Deserialize, Serialize};

use crate::text::number;

/// A text beside which a column has only numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OddText {
    /// How many values.
    pub values: u64,
    /// The text.
    pub text: String,
}

impl OddText {
    /// Says that column `column` has this text, and what to do about it. `nulls`: how to say that the text of CSV means a missing value,
    /// such as `set data.csv.nulls to ["NA"]`; `None`: the rows are no CSV.
    #[must_use]
    pub fn hint(&self, column: &str, nulls: Option<&str>) -> String {
        let Self { values, text } = self;
        let (count, are) = (counted(*values, "value"), if *values == 1 { "is" } else { "are" });
        let how = match nulls {
            _ if number::has_comma(text) => format!("write it {}", number::WITHOUT_COMMA),
            Some(nulls) => format!("if it means a missing value, {nulls}"),
            None => "if it means a missing value, write null".to_owned(),
        };
        format!("{column}: {count} {are} `{text}`, and all others numbers: {how}")
    }
}

/// The longest text that is taken for a missing value, in bytes.
const LONGEST: usize = 16;

/// Counts the values of one column.
#[derive(Clone, Debug, Default)]
pub(crate) struct OddTexts {
    found: OddText,
    numbers: u64,
    /// The column has several texts, or a long one: it is a column of text.
    several: bool,
}

impl OddTexts {
    /// Counts a text.
    pub(crate) fn add(&mut self, text: &str, is_number: bool) {
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

    /// The column has a number that stays text, such as the zip code `07001`: it is a column of text.
    pub(crate) fn settle(&mut self) {
        self.several = true;
    }

    /// Whether no further text changes the result.
    pub(crate) fn is_settled(&self) -> bool {
        self.several
    }

    /// The text, if it is the only one beside numbers.
    pub(crate) fn finish(&mut self) -> Option<OddText> {
        let found = std::mem::take(&mut self.found);
        (found.values > 0 && self.numbers > 0 && !self.several).then_some(found)
    }
}
