//! The labels of a job: their columns, their positive values, and the weights of their losses.

use std::fmt;
use std::ops::Deref;

use forebay_actors::Fault;
use forebay_connectors::ValueKind;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::string_or_table::{Named, one_or_list};

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
    /// The name of the label in outputs, for instance of its score. Default: the name of its column.
    #[serde(default)]
    pub name: Option<String>,
    /// With several labels: whether a row without a value of this label (null, NaN) still trains the others. The row does not count in the
    /// loss and the metrics of this label. By default it is a bad row.
    #[serde(default)]
    pub mask_missing: bool,
    /// The factor of this label's loss in the sum over all labels: a number above 0.
    #[serde(default = "weight_1")]
    pub weight: f64,
}

fn weight_1() -> f64 {
    1.0
}

/// The labels of a job, in their order: one, or several for the kinds of model that take several. It is never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Labels(Vec<LabelColumn>);

impl Labels {
    /// The first label.
    pub fn main(&self) -> &LabelColumn {
        &self.0[0]
    }

    /// The factor of each label's loss.
    pub fn weights(&self) -> Vec<f32> {
        self.0.iter().map(|label| label.weight as f32).collect()
    }

    /// The names of several labels; empty for one, which needs no name.
    pub fn names(&self) -> Vec<String> {
        if self.0.len() == 1 { Vec::new() } else { self.0.iter().map(|label| label.name().to_owned()).collect() }
    }

    /// Checks each label, and that no two have the same name; the fault names the field.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.0.iter().try_for_each(LabelColumn::check)?;
        if let [one] = &self.0[..]
            && one.weight != 1.0
        {
            return Err(Fault::user(format!(
                "columns.label has the weight {}, but it is the only label, and weights are for several labels: leave \
                 it out",
                one.weight
            )));
        }
        if let [one] = &self.0[..]
            && one.mask_missing
        {
            return Err(Fault::user(
                "columns.label has mask_missing, but it is the only label, and mask_missing is for several: leave it \
                 out, and set data.on_bad_row = \"skip\" to leave out rows without a label",
            ));
        }
        for (at, label) in self.0.iter().enumerate() {
            if self.0[..at].iter().any(|before| before.name() == label.name()) {
                return Err(Fault::user(format!(
                    "columns.label has two labels called `{0}`: give one a name of its own, for instance {{ column = \"{1}\", name = \
                     \"{0}_2\" }}",
                    label.name(),
                    label.column
                )));
            }
        }
        Ok(())
    }
}

impl Deref for Labels {
    type Target = [LabelColumn];

    fn deref(&self) -> &[LabelColumn] {
        &self.0
    }
}

impl<T: Into<LabelColumn>> From<T> for Labels {
    fn from(label: T) -> Self {
        Self(vec![label.into()])
    }
}

/// One label is written as itself, several as a list.
impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_or_list(deserializer).map(Self)
    }
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

/// Whether a text of digits is another integer than `number`, the nearest of 64-bit floating-point numbers.
pub fn is_rounded(digits: &str, number: f64) -> bool {
    digits.parse::<i128>().is_ok_and(|exact| exact != number as i128)
}

impl Positive {
    /// A value that comes a second time: the same text, or if all values are numbers the same number.
    fn twice(&self) -> Option<&str> {
        let PositiveRule::OneOf(values) = &self.0 else { return None };
        let numbers: Option<Vec<f64>> = values.iter().map(|value| value.parse().ok()).collect();
        let same_number = |of: &[f64], a: usize, b: usize| match (values[a].parse::<i128>(), values[b].parse::<i128>())
        {
            (Ok(a), Ok(b)) => a == b,
            _ => of[a] == of[b],
        };
        let same =
            |a: usize, b: usize| values[a] == values[b] || numbers.as_ref().is_some_and(|of| same_number(of, a, b));
        (0..values.len()).find(|&at| (0..at).any(|before| same(before, at))).map(|at| values[at].as_str())
    }
}

/// As a job file has it.
impl fmt::Display for Positive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            PositiveRule::OneOf(values) => write!(f, "{values:?}"),
            PositiveRule::Compared(comparison, limit) => {
                let sign = COMPARISONS.iter().find(|(_, c)| c == comparison).map_or("", |(sign, _)| sign);
                write!(f, "\"{sign} {limit}\"")
            }
        }
    }
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
    /// Whether the comparison of `value` with `limit` holds.
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
    /// Its name in outputs.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.column)
    }

    /// The type of the label's values in text files.
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
        if let Some(twice) = self.positive.as_ref().and_then(Positive::twice) {
            return Err(Fault::user(format!(
                "columns.label: positive has the value {twice:?} of `{}` twice, expected each value once",
                self.column
            )));
        }
        // The loss is in f32, where small numbers are 0 and large ones infinite.
        let weight = self.weight as f32;
        if !(weight > 0.0 && weight.is_finite()) {
            return Err(Fault::user(format!(
                "columns.label gives `{}` the weight {}, expected a finite number above 0",
                self.name(),
                self.weight
            )));
        }
        match self.name.as_deref() {
            Some("") => {
                Err(Fault::user("columns.label has a name without a letter: leave `name` out for that of the column"))
            }
            _ => Ok(()),
        }
    }
}

impl<T: Into<String>> From<T> for LabelColumn {
    fn from(column: T) -> Self {
        Self { column: column.into(), positive: None, soft: false, name: None, mask_missing: false, weight: 1.0 }
    }
}

impl Named for LabelColumn {
    const EXPECTED: &'static str = "a column name, or a table with `column = ...`";
}

/// A label without options is written as the name of its column.
impl Serialize for LabelColumn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::from(self.column.as_str()) {
            return serializer.serialize_str(&self.column);
        }
        let mut table = serializer.serialize_struct("LabelColumn", 6)?;
        table.serialize_field("column", &self.column)?;
        if let Some(positive) = &self.positive {
            table.serialize_field("positive", positive)?;
        }
        table.serialize_field("soft", &self.soft)?;
        if let Some(name) = &self.name {
            table.serialize_field("name", name)?;
        }
        if self.mask_missing {
            table.serialize_field("mask_missing", &true)?;
        }
        if self.weight != 1.0 {
            table.serialize_field("weight", &self.weight)?;
        }
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
                let found = COMPARISONS.iter().find_map(|(sign, comparison)| {
                    let digits = text.trim().strip_prefix(sign)?.trim();
                    let limit: f64 = digits.parse().ok()?;
                    limit.is_finite().then_some((*comparison, digits, limit))
                });
                let (comparison, digits, limit) =
                    found.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                if is_rounded(digits, limit) {
                    return Err(E::custom(format!(
                        "positive = {text:?} has more digits than a 64-bit floating-point number, which is {limit}: write that"
                    )));
                }
                Ok(Positive(PositiveRule::Compared(comparison, limit)))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Positive, A::Error> {
                #[derive(Deserialize)]
                #[serde(
                    untagged,
                    expecting = "expected texts or numbers in `positive`, such as [\"click\", \"buy\"] or [4, 5]; a column of booleans \
                                 needs no `positive`"
                )]
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
        toml::from_str::<Columns>(&format!("label = {text}")).map(|columns| columns.label.main().clone())
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
            assert_eq!(label, LabelColumn { positive: positive.map(Positive), soft, ..LabelColumn::from("y") });
            assert_eq!(label.in_text(), kind);
            let columns = Columns { label: label.clone().into(), ..Columns::default() };
            assert_eq!(toml::from_str::<Columns>(&toml::to_string(&columns).unwrap()).unwrap().label.main(), &label);
        }
        assert!(toml::to_string(&Columns::default()).unwrap().contains("label = \"label\""));
    }

    #[test]
    fn rules_without_meaning_are_refused() {
        for rule in ["'4'", "'>= four'", "'>= inf'", "'= 4'", "''", "[]", "7"] {
            let said = read(&format!("{{ column = 'y', positive = {rule} }}")).unwrap_err().to_string();
            assert!(said.contains("a comparison such as"), "{rule}: {said}");
        }
        let said = read("{ column = 'y', positive = '>= 9007199254740993' }").unwrap_err().to_string();
        assert!(said.contains("has more digits") && said.contains("9007199254740992: write that"), "{said}");
        assert!(read("{ column = 'y', positive = '>= 1700000000000000000' }").is_ok());
        let said = read("{ column = 'y', positive = [true] }").unwrap_err().to_string();
        assert!(said.contains("a column of booleans needs no `positive`"), "{said}");
        let said = read("{ column = 'y', positiv = '> 1' }").unwrap_err().to_string();
        assert!(said.contains("unknown field `positiv`"), "{said}");
        assert!(read("{ column = 'y', positive = '> 1', soft = true }").unwrap().check().is_err());
    }

    #[test]
    fn a_positive_value_comes_once() {
        let check = |rule: &str| read(&format!("{{ column = 'y', positive = {rule} }}")).unwrap().check();
        for rule in ["['1', '1']", "[4, 5, 4]", "['1', '1.0']", "['a', 'b', 'a']"] {
            let said = check(rule).unwrap_err().to_string();
            assert!(said.contains("of `y` twice, expected each value once"), "{rule}: {said}");
        }
        for rule in ["['1', '2']", "['1', '1.0', 'a']", "[9007199254740992, 9007199254740993]"] {
            check(rule).unwrap();
        }
    }
}
