//! The label of a job: its column, and which of its values are positive.

use std::fmt;

use forebay_actors::Fault;
use forebay_connectors::ValueKind;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::string_or_table::Named;

/// The column of the label, and how its values become labels. By default each value is the label: 0, 1 or a boolean.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelColumn {
    /// Name of the column.
    pub column: String,
    /// Which values have the label 1: a comparison such as `">= 4"`, or a list of values such as `["click", "buy"]`. All others
    /// have the label 0.
    #[serde(default)]
    pub positive: Option<Positive>,
    /// Whether the values are soft labels: probabilities from 0 to 1. A soft label y counts as y positive and 1 - y negative rows.
    #[serde(default)]
    pub soft: bool,
}

/// Which values of a label column are positive.
#[derive(Clone, Debug, PartialEq)]
pub struct Positive(pub PositiveRule);

/// See [`Positive`].
#[derive(Clone, Debug, PartialEq)]
pub enum PositiveRule {
    /// Numbers for which the comparison holds.
    Compared(Comparison, f64),
    /// These values.
    OneOf(Vec<String>),
}

/// A comparison with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `>=`
    AtLeast,
    /// `>`
    Above,
    /// `<=`
    AtMost,
    /// `<`
    Below,
}

/// The longer of two comparisons with the same beginning comes first.
const COMPARISONS: [(&str, Comparison); 4] =
    [(">=", Comparison::AtLeast), (">", Comparison::Above), ("<=", Comparison::AtMost), ("<", Comparison::Below)];

impl Comparison {
    /// Whether `value` compares so with `limit`.
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::AtLeast => value >= limit,
            Self::Above => value > limit,
            Self::AtMost => value <= limit,
            Self::Below => value < limit,
        }
    }
}

impl LabelColumn {
    /// What the values are in text.
    pub(crate) fn in_text(&self) -> ValueKind {
        match &self.positive {
            Some(Positive(PositiveRule::OneOf(values))) if values.iter().any(|v| v.parse::<f64>().is_err()) => {
                ValueKind::Text
            }
            _ => ValueKind::Number,
        }
    }

    /// Checks combinations of options; the fault names the field.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.soft && self.positive.is_some() {
            return Err(Fault::user(
                "columns.label has both `positive`, which makes labels of 0 and 1, and `soft`, for labels between them: leave one out",
            ));
        }
        Ok(())
    }
}

impl<T: Into<String>> From<T> for LabelColumn {
    fn from(column: T) -> Self {
        Self { column: column.into(), positive: None, soft: false }
    }
}

impl Named for LabelColumn {
    const EXPECTED: &'static str = "a column name, or a table with `column = ...`";
}

/// A label without options is written as the name of its column.
impl Serialize for LabelColumn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.positive.is_none() && !self.soft {
            return serializer.serialize_str(&self.column);
        }
        let mut table = serializer.serialize_struct("LabelColumn", 3)?;
        table.serialize_field("column", &self.column)?;
        if let Some(positive) = &self.positive {
            table.serialize_field("positive", positive)?;
        }
        table.serialize_field("soft", &self.soft)?;
        table.end()
    }
}

impl Serialize for Positive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            PositiveRule::OneOf(values) => values.serialize(serializer),
            PositiveRule::Compared(comparison, limit) => {
                let sign = COMPARISONS.iter().find(|(_, c)| c == comparison).map_or("", |(sign, _)| sign);
                serializer.collect_str(&format_args!("{sign} {limit}"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rule;
        impl<'de> de::Visitor<'de> for Rule {
            type Value = Positive;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a comparison such as \">= 4\", or a list of at least one value such as [\"click\", \"buy\"]",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Positive, E> {
                let rule = COMPARISONS.iter().find_map(|(sign, comparison)| {
                    let limit: f64 = text.trim().strip_prefix(sign)?.trim().parse().ok()?;
                    limit.is_finite().then_some(PositiveRule::Compared(*comparison, limit))
                });
                rule.map(Positive).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Positive, A::Error> {
                #[derive(Deserialize)]
                #[serde(untagged)]
                enum Value {
                    Text(String),
                    Integer(i64),
                    Number(f64),
                }
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(match value {
                        Value::Text(text) => text,
                        Value::Integer(number) => number.to_string(),
                        Value::Number(number) => number.to_string(),
                    });
                }
                if values.is_empty() {
                    return Err(de::Error::invalid_length(0, &self));
                }
                Ok(Positive(PositiveRule::OneOf(values)))
            }
        }
        deserializer.deserialize_any(Rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Columns;

    fn read(text: &str) -> Result<LabelColumn, toml::de::Error> {
        toml::from_str::<Columns>(&format!("label = {text}")).map(|columns| columns.label)
    }

    #[test]
    fn a_label_is_a_name_or_a_table_and_reads_back() {
        for (text, positive, soft, kind) in [
            ("'y'", None, false, ValueKind::Number),
            ("{ column = 'y', soft = true }", None, true, ValueKind::Number),
            (
                "{ column = 'y', positive = '>= 4' }",
                Some(PositiveRule::Compared(Comparison::AtLeast, 4.0)),
                false,
                ValueKind::Number,
            ),
            (
                "{ column = 'y', positive = '<-0.5' }",
                Some(PositiveRule::Compared(Comparison::Below, -0.5)),
                false,
                ValueKind::Number,
            ),
            (
                "{ column = 'y', positive = ['a', 'b'] }",
                Some(PositiveRule::OneOf(vec!["a".into(), "b".into()])),
                false,
                ValueKind::Text,
            ),
            (
                "{ column = 'y', positive = [4, 5] }",
                Some(PositiveRule::OneOf(vec!["4".into(), "5".into()])),
                false,
                ValueKind::Number,
            ),
        ] {
            let label = read(text).unwrap();
            assert_eq!(label, LabelColumn { column: "y".into(), positive: positive.map(Positive), soft });
            assert_eq!(label.in_text(), kind);
            let columns = Columns { label: label.clone(), ..Columns::default() };
            assert_eq!(toml::from_str::<Columns>(&toml::to_string(&columns).unwrap()).unwrap().label, label);
        }
        assert!(toml::to_string(&Columns::default()).unwrap().contains("label = \"label\""));
    }

    #[test]
    fn rules_without_meaning_are_refused() {
        for rule in ["'4'", "'>= four'", "'>= inf'", "'= 4'", "''", "[]", "7"] {
            let said = read(&format!("{{ column = 'y', positive = {rule} }}")).unwrap_err().to_string();
            assert!(said.contains("a comparison such as"), "{rule}: {said}");
        }
        let said = read("{ column = 'y', positiv = '> 1' }").unwrap_err().to_string();
        assert!(said.contains("unknown field `positiv`"), "{said}");
        assert!(read("{ column = 'y', positive = '> 1', soft = true }").unwrap().check().is_err());
    }
}
