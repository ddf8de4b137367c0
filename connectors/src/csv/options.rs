//! How CSV is written: its delimiter, quotes, and what stands for a missing value.

use forebay_actors::{Fault, FaultKind};
use serde::{Deserialize, Deserializer, Serialize, de};

/// How CSV is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CsvOptions {
    /// The character between two fields, an ASCII character such as "," or "\t".
    #[serde(deserialize_with = "delimiter")]
    pub delimiter: char,
    /// Whether fields may be in double quotes, with `""` for a quote in a field. A quoted field must end on its line.
    pub quotes: bool,
    /// Texts that mean a missing value, as an empty field does, for instance `["NULL"]`.
    pub nulls: Vec<String>,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self { delimiter: ',', quotes: true, nulls: Vec::new() }
    }
}

impl CsvOptions {
    /// The delimiter that a text names: one character, or a backslash and `t` for a tab, as shells pass it.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse_delimiter(text: &str) -> Result<char, String> {
        let mut characters = text.chars();
        match (text, characters.next(), characters.next()) {
            ("\\t", ..) => Ok('\t'),
            (_, Some(one), None) => Ok(one),
            (_, _, Some(_)) => Err(format!(
                "expected one character, such as ; or \\t; write a file with {text:?} between its fields anew, for instance by \
                 `sed 's/{text}/;/g'`"
            )),
            _ => Err("expected one character, such as ; or \\t".to_owned()),
        }
    }

    /// Checks that the delimiter can be told from everything else.
    ///
    /// # Errors
    /// A user fault that names the delimiter.
    pub fn check(&self) -> Result<(), Fault> {
        let delimiter = self.delimiter;
        if delimiter.is_ascii() && !matches!(delimiter, '\n' | '\r' | '\0') && !(self.quotes && delimiter == '"') {
            return Ok(());
        }
        Err(Fault::user(format!(
            "the delimiter of CSV is {delimiter:?}, expected one ASCII character other than a line end or a quote, such as \
             \",\" or \"\\t\""
        ))
        .kind(FaultKind::InvalidJob))
    }

    /// The delimiter as a byte; see [`check`](Self::check).
    pub(super) fn delimiter(&self) -> u8 {
        u8::try_from(self.delimiter).unwrap_or(b',')
    }
}

fn delimiter<'de, D: Deserializer<'de>>(deserializer: D) -> Result<char, D::Error> {
    let text = String::deserialize(deserializer)?;
    CsvOptions::parse_delimiter(&text)
        .map_err(|expected| de::Error::custom(format!("{text:?} is no delimiter, {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delimiter_of_several_characters_names_a_command_that_replaces_it() {
        let said = CsvOptions::parse_delimiter("::").unwrap_err();
        assert!(said.contains("one character") && said.contains("sed 's/::/;/g'"), "{said}");
        assert_eq!(CsvOptions::parse_delimiter("\\t"), Ok('\t'));
    }
}
