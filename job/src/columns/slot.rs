//! A slot: a categorical column, and how its values become keys.

use std::collections::HashMap;
use std::ops::Range;

use forebay_actors::Fault;
use forebay_base::parse_hex;
use forebay_connectors::ValueKind;
use forebay_models::Pooling;
use serde::{Deserialize, Serialize};

use super::Columns;
use super::padding::Padding;
use super::unix_unit::{UnixUnit, offset_microseconds, times_in_text};

/// Most quantiles of a slot.
const MOST_QUANTILES: usize = 1000;

/// One slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slot {
    /// Name of the column, or a range.
    pub column: String,
    /// How values become numbers before they are hashed.
    #[serde(default)]
    pub kind: SlotKind,
    /// For the kinds `hour` and `weekday` of a column of integers: their unit. They count the time since 1970 in UTC, such as unix seconds;
    /// so do 64-bit floating-point numbers, whose fractions are rounded down. In CSV and JSON lines the column then has numbers, and no
    /// text. Other files may also have dates and timestamps there, which have their own unit. A time that is not in the years 1 to 9999
    /// makes a bad row. Default: integers are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnixUnit>,
    /// For the kinds `hour` and `weekday`: a fixed offset from UTC, for instance `+05:30`. The hour and the day are then those of clocks at
    /// this offset, the whole year. A date keeps its day. From `-14:00` to `+14:00`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc_offset: Option<String>,
    /// The name that keys are hashed with, for instance `item`. Slots with the same key space share rows of the table, such as the
    /// candidate item and the items of the user's history. They must hash their values alike. Default: the name of the column; if slots of
    /// different kinds have this column and no key space, the kinds `hour` and `weekday` get `COLUMN.hour` and `COLUMN.weekday`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_space: Option<String>,
    /// The boundaries of the kind `boundaries`, ascending, for instance `[18, 25, 35, 50]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<f64>>,
    /// The number of buckets between quantiles of the training rows, instead of `boundaries`, for instance `10` for deciles. `forebay data
    /// stats JOB --write` computes the quantiles and writes them to `columns.quantiles`. From 2 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<usize>,
    /// The number of buckets that values are hashed into, for instance `100_000`. A missing value has its own key. Default: each value has
    /// its own key. At least 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    /// How many values from the start of a list are used, for instance `50`. Default: all. At least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<usize>,
    /// How many values from the end of a list are used, for lists with the newest value last, for instance `50`. Default: all. At least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
    /// The value that fills lists up to a length, for instance `0` or `"<pad>"`. Lists are read without it, before `first` or `last` count
    /// their values. For the kinds `auto`, `int`, `string`, and `hex` with hexadecimal digits. Default: all values count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<Padding>,
    /// How the embeddings of a bag become one vector, for instance `mean`. Default: `model.pooling`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// A column, or a range, with a weight for each value of the slot: a number of at least 0, and in lists as many as values. The pooling
    /// is then a weighted sum or a weighted mean, for instance `item_weights`. Default: every value has weight 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The table of `[tables]` that has its rows, for instance `users`. Slots of one key space have one table. Default: `[table]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

/// How categorical values become numbers. Every kind takes lists of its type as well (multi-valued slots).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotKind {
    /// `int` for integers, booleans, dates and timestamps, `string` for strings and all of CSV and JSON lines.
    #[default]
    Auto,
    /// Integers; booleans as 0 and 1; dates as days since 1970; timestamps as microseconds since 1970, for any unit in the file.
    Int,
    /// Hexadecimal strings of up to 16 digits, or the integers they stand for: the same keys either way. An empty
    /// string is a missing value.
    Hex,
    /// Any string, byte by byte; also binary values.
    String,
    /// Numbers in logarithmic buckets: ⌊ln(x)²⌋ + 2 from 3 on, smaller numbers unchanged (the bucketing of the winners of the Criteo
    /// challenge). So a linear model can learn from counts. NaN is a missing value.
    LogBucket,
    /// Numbers in buckets between the boundaries of `boundaries` or `quantiles`: the bucket is the count of boundaries that are at most as
    /// large. NaN is a missing value.
    Boundaries,
    /// The hour of a timestamp, 0 to 23, in UTC or at `utc_offset`. Text must be a date or a timestamp, `2026-11-20 03:04:05`, also with
    /// `T` and a time zone; integers need a `unit`.
    Hour,
    /// The day of the week of a date or a timestamp, in UTC or at `utc_offset`: 0 for Monday to 6 for Sunday. Integers need a `unit`.
    Weekday,
}

impl SlotKind {
    /// Whether the kind is one of moments.
    pub fn is_of_time(self) -> bool {
        matches!(self, Self::Hour | Self::Weekday)
    }

    /// The name in a job.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Int => "int",
            Self::Hex => "hex",
            Self::String => "string",
            Self::LogBucket => "log_bucket",
            Self::Boundaries => "boundaries",
            Self::Hour => "hour",
            Self::Weekday => "weekday",
        }
    }
}

impl Slot {
    /// The name that its keys are hashed with.
    pub fn key_space(&self) -> &str {
        self.key_space.as_deref().unwrap_or(&self.column)
    }

    /// `utc_offset` in microseconds; 0 is UTC.
    pub fn utc_offset_microseconds(&self) -> i64 {
        self.utc_offset.as_deref().and_then(offset_microseconds).unwrap_or(0)
    }

    /// The type of the slot's values in text files.
    pub(super) fn in_text(&self) -> ValueKind {
        match self.kind {
            SlotKind::Auto | SlotKind::String => ValueKind::Text,
            SlotKind::Int => ValueKind::Integer,
            SlotKind::Hex => ValueKind::Hex,
            SlotKind::LogBucket | SlotKind::Boundaries => ValueKind::Number,
            SlotKind::Hour | SlotKind::Weekday => times_in_text(self.unit),
        }
    }

    /// The columns that it reads: that of its values, and that of their weights.
    pub fn columns(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.column).chain(&self.weights)
    }

    /// `quantiles`: of all slots, by column.
    pub(super) fn check(&self, columns: &Columns, quantiles: &HashMap<&str, Vec<usize>>) -> Result<(), Fault> {
        let of = || format!("columns.slots: `{}`", self.column);
        for (name, count) in [("first", self.first), ("last", self.last)] {
            if count == Some(0) {
                return Err(Fault::user(format!("{}: {name} is 0, expected at least 1", of())));
            }
        }
        if self.first.is_some() && self.last.is_some() {
            return Err(Fault::user(format!("{}: first and last exclude each other, expected one of them", of())));
        }
        check_buckets(self.buckets, of)?;
        self.check_weights(columns, of)?;
        self.check_padding(of)?;
        self.check_boundaries(columns, quantiles, of)
    }

    fn check_weights(&self, columns: &Columns, of: impl Fn() -> String) -> Result<(), Fault> {
        let Some(weights) = &self.weights else { return Ok(()) };
        let refuse = |what: String| Err(Fault::user(format!("{}: {what}", of())));
        if self.pooling == Some(Pooling::Max) {
            return refuse(WEIGHTS_OF_MAX.into());
        }
        if let Some(absent) = [weights, &self.column].into_iter().find(|name| columns.optional.contains(name)) {
            return refuse(format!(
                "it has weights, so `{absent}` must not be in columns.optional: a value without a weight is a bad row"
            ));
        }
        match columns.crosses.iter().find(|cross| cross.columns.contains(&self.column)) {
            None => Ok(()),
            Some(cross) => refuse(format!(
                "it has weights, and the cross `{}` would ignore them: leave the weights or the cross out, or write \
                 the values for the cross to another column",
                cross.key_space()
            )),
        }
    }

    fn check_padding(&self, of: impl Fn() -> String) -> Result<(), Fault> {
        let Some(padding) = &self.padding else { return Ok(()) };
        let refuse = |what: String| Err(Fault::user(format!("{}: {what}", of())));
        if self.weights.is_some() {
            return refuse("it has weights: give the padding the weight 0, and leave out `padding`".into());
        }
        let (name, text) = (self.kind.name(), padding.text());
        match self.kind {
            SlotKind::Auto | SlotKind::String => Ok(()),
            SlotKind::Int if padding.integer().is_some() => Ok(()),
            SlotKind::Int => refuse(format!("padding is {text:?}, expected an integer, as its kind is \"int\"")),
            SlotKind::Hex if parse_hex(text.as_bytes()).is_some() => Ok(()),
            SlotKind::Hex => {
                refuse(format!("padding is {text:?}, expected up to 16 hexadecimal digits, as its kind is \"hex\""))
            }
            _ => refuse(format!(
                "padding needs the kind \"auto\", \"int\", \"hex\" or \"string\", and its kind is {name:?}"
            )),
        }
    }

    fn check_boundaries(
        &self,
        columns: &Columns,
        all: &HashMap<&str, Vec<usize>>,
        of: impl Fn() -> String,
    ) -> Result<(), Fault> {
        let refuse = |what: &str| Err(Fault::user(format!("{}: {what}", of())));
        let given = self.boundaries.is_some() || self.quantiles.is_some();
        match (self.kind == SlotKind::Boundaries, given) {
            (false, false) => return Ok(()),
            (false, true) => {
                return refuse(
                    "boundaries and quantiles are for kind = \"boundaries\": set the kind, or leave them out",
                );
            }
            (true, false) => {
                return refuse(
                    "its kind is \"boundaries\", expected boundaries = [...], or quantiles = 10 for deciles",
                );
            }
            (true, true) if self.boundaries.is_some() && self.quantiles.is_some() => {
                return refuse("boundaries and quantiles exclude each other, expected one of them");
            }
            (true, true) => {}
        }
        if let Some(quantiles) = self.quantiles.filter(|quantiles| !(2..=MOST_QUANTILES).contains(quantiles)) {
            return refuse(&format!("quantiles is {quantiles}, expected 2 to {MOST_QUANTILES}"));
        }
        let mut same = all.get(self.column.as_str()).into_iter().flatten();
        if let Some(quantiles) = self.quantiles
            && let Some(other) = same.find(|other| **other != quantiles)
        {
            return refuse(&format!(
                "quantiles is {quantiles} here and {other} in another slot of this column, expected the same"
            ));
        }
        let (field, boundaries) = match (&self.boundaries, columns.quantiles_of(&self.column)) {
            (Some(boundaries), _) => ("boundaries".to_owned(), boundaries.as_slice()),
            (None, Some(found)) => (format!("columns.quantiles.{}", self.column), found),
            (None, None) => {
                return refuse(
                    "it has quantiles, but columns.quantiles has no entry for it: `forebay data stats JOB --write` \
                     computes them",
                );
            }
        };
        if boundaries.is_empty() {
            return refuse(&format!("{field} is empty, expected at least one number"));
        }
        if let Some(wrong) = boundaries.iter().find(|boundary| !boundary.is_finite()) {
            return refuse(&format!("{field} has {wrong}, expected finite numbers"));
        }
        match boundaries.windows(2).find(|pair| pair[0] >= pair[1]) {
            None => Ok(()),
            Some(pair) => refuse(&format!("{field} has {} before {}, expected ascending numbers", pair[0], pair[1])),
        }
    }

    /// Whether it says which values of lists count, so that its column has lists.
    pub fn is_of_lists(&self) -> bool {
        self.first.or(self.last).is_some() || self.padding.is_some()
    }

    /// The range of the values that are used, in a list of `count` values.
    pub fn kept_of(&self, count: usize) -> Range<usize> {
        let from = self.last.map_or(0, |last| count.saturating_sub(last));
        from..self.first.map_or(count, |first| count.min(first))
    }
}

/// Why a slot with weights cannot have the pooling `max`.
pub(crate) const WEIGHTS_OF_MAX: &str =
    "it has weights, which need the pooling \"sum\" or \"mean\", not \"max\": set one of these";

/// One bucket would be one key for all values.
pub(super) fn check_buckets(buckets: Option<u64>, of: impl Fn() -> String) -> Result<(), Fault> {
    match buckets {
        Some(n @ 0..2) => Err(Fault::user(format!("{}: buckets is {n}, expected at least 2", of()))),
        _ => Ok(()),
    }
}

impl From<String> for Slot {
    fn from(column: String) -> Self {
        Self {
            column,
            kind: SlotKind::default(),
            unit: None,
            utc_offset: None,
            key_space: None,
            boundaries: None,
            quantiles: None,
            buckets: None,
            first: None,
            last: None,
            padding: None,
            pooling: None,
            weights: None,
            table: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Columns;

    #[test]
    fn boundaries_are_ascending_numbers_or_those_of_data_stats() {
        let check = |slot: &str| {
            let text = format!("slots = [{{ column = 'age', {slot} }}]\n[quantiles]\nempty = []\nx = [1.0]\n");
            toml::from_str::<Columns>(&text).unwrap().check()
        };
        check("kind = 'boundaries', boundaries = [-1.5, 0, 7]").unwrap();
        for (slot, words) in [
            ("kind = 'boundaries'", "expected boundaries = [...], or quantiles = 10"),
            ("kind = 'boundaries', boundaries = []", "`age`: boundaries is empty"),
            ("kind = 'boundaries', boundaries = [3, 2]", "boundaries has 3 before 2, expected ascending"),
            ("kind = 'boundaries', boundaries = [2, 2]", "2 before 2"),
            ("kind = 'boundaries', boundaries = [1, nan]", "boundaries has NaN, expected finite"),
            ("kind = 'boundaries', boundaries = [1, inf]", "boundaries has inf"),
            ("kind = 'boundaries', boundaries = [1], quantiles = 4", "exclude each other"),
            ("kind = 'boundaries', quantiles = 1", "quantiles is 1, expected 2 to 1000"),
            ("kind = 'boundaries', quantiles = 4", "columns.quantiles has no entry for it: `forebay data stats"),
            ("kind = 'int', boundaries = [1]", "for kind = \"boundaries\""),
            ("quantiles = 3", "for kind = \"boundaries\""),
        ] {
            let said = check(slot).unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        let quantiles = |of: &str| {
            let text = "slots = [{ column = 'age', kind = 'boundaries', quantiles = 3 }]";
            toml::from_str::<Columns>(&format!("{text}\n[quantiles]\nage = {of}")).unwrap().check()
        };
        quantiles("[1.0, 2.0]").unwrap();
        assert!(quantiles("[]").unwrap_err().to_string().contains("columns.quantiles.age is empty"));
    }

    #[test]
    fn padding_is_a_value_of_the_kind() {
        let check = |slot: &str| {
            let columns = toml::from_str::<Columns>(&format!("slots = [{{ column = 'h', {slot} }}]"));
            columns.map_err(|error| error.to_string())?.check().map_err(|fault| fault.to_string())
        };
        for slot in
            ["padding = 0", "padding = ''", "kind = 'int', padding = '-1'", "kind = 'hex', padding = 'ff', last = 2"]
        {
            check(slot).unwrap();
        }
        for (slot, words) in [
            ("kind = 'int', padding = 'x'", "`h`: padding is \"x\", expected an integer"),
            ("kind = 'hex', padding = '<pad>'", "expected up to 16 hexadecimal digits"),
            ("kind = 'log_bucket', padding = 0", "its kind is \"log_bucket\""),
            ("padding = 0, weights = 'w'", "give the padding the weight 0"),
            ("padding = 0.5", "expected an integer or a string"),
        ] {
            let said = check(slot).unwrap_err();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }

    #[test]
    fn weights_go_with_sums_and_means_of_columns_that_are_there() {
        let columns = |text: &str| toml::from_str::<Columns>(text).map_err(|error| error.to_string());
        let check = |text: &str| columns(text)?.check().map_err(|fault| fault.to_string());
        check("slots = [{ column = 'x', weights = 'w', pooling = 'mean', last = 3, buckets = 9 }, 'y']").unwrap();
        for (text, words) in [
            (
                "slots = [{ column = 'x', weights = 'w', pooling = 'max' }]",
                "`x`: it has weights, which need the pooling \"sum\"",
            ),
            ("slots = [{ column = 'x', weights = 'w' }]\noptional = ['w']", "`w` must not be in columns.optional"),
            ("slots = [{ column = 'x', weights = 'w' }]\noptional = ['x']", "`x` must not be in columns.optional"),
            (
                "slots = [{ column = 'x', weights = 'w' }, 'y']\ncrosses = [{ columns = ['y', 'x'] }]",
                "the cross `y x x` would ignore them",
            ),
            ("slots = [{ column = 'h1..h3', weights = 'w1..w2' }]", "`h1..h3` has 3 slots and 2 columns of weights"),
        ] {
            let said = check(text).unwrap_err();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        let three = columns("dense = []\nslots = [{ column = 'h1..h2', weights = 'w1..w2' }]").unwrap();
        assert_eq!(three.names(), ["label", "h1", "w1", "h2", "w2"]);
        assert_eq!(three.slots[1].weights.as_deref(), Some("w2"));
        let text = toml::to_string(&three).unwrap();
        assert_eq!(toml::from_str::<Columns>(&text).unwrap(), three);
        assert!(!toml::to_string(&Columns::default()).unwrap().contains("weights"), "a job without has no field more");
    }
}
