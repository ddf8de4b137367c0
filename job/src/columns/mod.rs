//! The roles of columns: label, dense features, categorical slots. A job needs no vocabulary, because keys are hashes of (slot, value).

mod column_uses;
mod cross;
mod dense_column;
mod feature_scale;
mod key_spaces;
mod padding;
mod slot;
mod slot_tables;
mod time_spaces;
mod times;
mod transform;
mod twice;
mod unix_unit;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use forebay_actors::{Fault, commas, counted};
use forebay_base::nearest;
use forebay_connectors::{FileColumn, Format, ValueKind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::label_column::Labels;
use crate::string_or_table::{Named, list};

pub use cross::SlotCross;
pub use dense_column::{Clip, DenseColumn, DenseStatistics, Scale};
pub use feature_scale::{FeatureScale, FeatureScales, look_like_counts};
pub use key_spaces::check_key_spaces;
pub use padding::Padding;
pub(crate) use slot::WEIGHTS_OF_MAX;
pub use slot::{Slot, SlotKind};
pub use transform::Transform;
pub use unix_unit::UnixUnit;

/// The columns of the rows. An entry of `dense` or `slots` is a column name, a range such as `C1..C26`, or a table with
/// `column` (a name or a range) and options. The default is Criteo's columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// The label: a column of 0 and 1 or booleans, or a table that says which values are positive. For the models of several labels
    /// (`model.kind`) a list of these.
    pub label: Labels,
    /// A column with the weight of each row: a number of at least 0. The loss is the mean over the rows of a batch of weight times
    /// loss, metrics count a row as often as its weight says, for instance `weight`. Default: every row weighs 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Columns with dense features: numbers, or booleans as 0 and 1. A missing value is 0, unless `fill` says otherwise.
    #[serde(deserialize_with = "dense_list")]
    pub dense: Vec<DenseColumn>,
    /// The statistics of dense features that `scale` needs, by column, for instance `{ I1 = { mean = 1.5, std = 2.0, min = 0.0, max = 9.0 }
    /// }`. `forebay data stats JOB --write` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<BTreeMap<String, DenseStatistics>>,
    /// The boundaries of slots with `quantiles`, by column, for instance `{ age = [22.0, 31.0, 45.0] }`. `forebay data stats JOB --write`
    /// writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<BTreeMap<String, Vec<f64>>>,
    /// Slots: columns with categorical features. A missing value counts as a value; an empty list has no value.
    #[serde(deserialize_with = "slot_list")]
    pub slots: Vec<Slot>,
    /// Crosses: slots whose values are the combinations of the values of two or three other slots (the cross-product transform of
    /// Wide & Deep). They come after `slots`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "cross::cross_list")]
    pub crosses: Vec<SlotCross>,
    /// Columns that a file may lack. Their values are then missing in all rows of the file. Other columns must be in every file.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "name_list")]
    pub optional: Vec<String>,
    /// Columns that are read for custom stages (`pipeline.after_read`), and are not features.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<String>,
    /// If these columns are only a part of the columns of a model: the tables that slots name, in the order of their numbers. Otherwise
    /// empty: the order is that of the slots.
    #[serde(skip)]
    pub tables: Vec<String>,
    /// Feature columns that had no lists in the training of a model. A null in JSON lines is then a missing value there, and no list.
    #[serde(skip)]
    pub single: Vec<String>,
    /// Feature columns that had lists in the training of a model. A column of nothing but nulls is then one of missing lists there.
    #[serde(skip)]
    pub lists: Vec<String>,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            label: "label".into(),
            weight: None,
            dense: expand("I1..I13").expect("a range").into_iter().map(DenseColumn::from).collect(),
            statistics: None,
            quantiles: None,
            slots: expand("C1..C26")
                .expect("a range")
                .into_iter()
                .map(|column| Slot { kind: SlotKind::Hex, ..Slot::from(column) })
                .collect(),
            crosses: Vec::new(),
            optional: Vec::new(),
            extra: Vec::new(),
            tables: Vec::new(),
            single: Vec::new(),
            lists: Vec::new(),
        }
    }
}

impl Columns {
    /// Every column that is read, without repetition.
    pub fn names(&self) -> Vec<String> {
        let mut first: Vec<String> = self.label.iter().map(|label| label.column.clone()).collect();
        first.extend(self.weight.clone());
        self.names_with(&first)
    }

    /// Every column that a prediction reads, without repetition: `first`, then all but the label and the weight.
    pub fn names_with(&self, first: &[String]) -> Vec<String> {
        let mut seen = HashSet::new();
        let all = first.iter().chain(self.features()).chain(&self.extra);
        all.filter(|column| seen.insert(*column)).cloned().collect()
    }

    /// The columns of the features, as often as they are used.
    fn features(&self) -> impl Iterator<Item = &String> {
        let dense = self.dense.iter().flat_map(|dense| std::iter::once(&dense.column).chain(dense.at_column()));
        dense.chain(self.slots.iter().flat_map(Slot::columns))
    }

    /// A label whose column is a feature, too: the model then learns to read the label from it, and not to predict.
    pub fn label_as_feature(&self) -> Option<&str> {
        self.label
            .iter()
            .map(|label| label.column.as_str())
            .find(|label| self.features().any(|feature| feature == label))
    }

    /// Every column that is read, without repetition, with the type of its values if files of this format do not say it: numbers for the
    /// label and dense features, for a slot the type of its kind, text for `auto` and for extra columns, integers for times with a unit.
    ///
    /// # Errors
    /// A user fault if a column is read as two kinds of values.
    pub fn in_files(&self, format: Format) -> Result<Vec<FileColumn>, Fault> {
        if let Some(vector) = self.dense.iter().find(|dense| dense.length.is_some() && format == Format::Csv) {
            return Err(Fault::user(format!(
                "columns.dense: `{}` has a length, but CSV has no lists: write the rows as Parquet or JSON lines",
                vector.column
            )));
        }
        let mut columns: Vec<FileColumn> = Vec::new();
        let mut places: HashMap<&String, usize> = HashMap::new();
        let labels = self.label.iter().map(|label| (&label.column, label.in_text()));
        let weight = self.weight.iter().map(|weight| (weight, ValueKind::Number));
        let dense = self.dense.iter().map(|dense| (&dense.column, dense.in_text()));
        let slots = self.slots.iter().map(|slot| (&slot.column, slot.in_text()));
        let at = self.dense.iter().filter_map(|dense| Some((dense.at_column()?, dense.at_in_text())));
        let weights = self.slots.iter().filter_map(|slot| Some((slot.weights.as_ref()?, ValueKind::Number)));
        for (name, kind) in labels.chain(weight).chain(dense).chain(at).chain(slots).chain(weights) {
            let there = match places.entry(name) {
                Entry::Occupied(place) => &mut columns[*place.get()],
                Entry::Vacant(place) => {
                    place.insert(columns.len());
                    columns.push(FileColumn::new(name, kind));
                    continue;
                }
            };
            there.kind = match (there.kind, kind) {
                (a, b) if a == b => a,
                (ValueKind::Number, ValueKind::Integer) | (ValueKind::Integer, ValueKind::Number) => ValueKind::Integer,
                (a, b) => {
                    let is_time = self.times().any(|time| time.column == name.as_str() && time.unit.is_none());
                    let unit = match is_time {
                        true => ", and where it is a time a unit (\"s\", \"ms\", \"us\" or \"ns\") if it has integers",
                        false => "",
                    };
                    return Err(Fault::user(format!(
                        "column `{name}` of text is read both as {a} and as {b}: give its slot kind = \"int\" or \
                         \"log_bucket\" if it has numbers, and one kind if it is several slots{unit}"
                    )));
                }
            };
        }
        for name in &self.extra {
            if let Entry::Vacant(place) = places.entry(name) {
                place.insert(columns.len());
                columns.push(FileColumn::new(name, ValueKind::Text));
            }
        }
        let uses = self.uses();
        Ok(columns.into_iter().map(|column| uses.as_read(column)).collect())
    }

    /// Dense features and slots whose type in the file decides how they are read.
    pub fn without_kind(&self) -> Vec<&str> {
        let dense = self.dense.iter().filter(|dense| dense.transform == Transform::Auto).map(|dense| &dense.column);
        let slots = self.slots.iter().filter(|slot| slot.kind == SlotKind::Auto).map(|slot| &slot.column);
        dense.chain(slots).map(String::as_str).collect()
    }

    /// Every column that is read, without repetition, for files that know the types of their columns.
    pub fn in_typed_files(&self) -> Vec<FileColumn> {
        let uses = self.uses();
        self.names().into_iter().map(|name| uses.as_read(FileColumn::new(name, ValueKind::Text))).collect()
    }

    /// Checks the columns and their options; the fault names the field.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        self.label.check()?;
        let scaled = self.dense.iter().filter(|dense| dense.scale.is_some());
        let scaled = by_column(scaled.map(|dense| (&dense.column, dense)));
        self.dense.iter().try_for_each(|dense| dense.check(self, &scaled))?;
        let quantiles = self.slots.iter().filter_map(|slot| Some((&slot.column, slot.quantiles?)));
        let quantiles = by_column(quantiles);
        self.slots.iter().try_for_each(|slot| slot.check(self, &quantiles))?;
        self.check_times()?;
        self.crosses.iter().try_for_each(|cross| cross.check(self))?;
        check_key_spaces(self, |slot| slot.kind)?;
        let names = self.names();
        let known: HashSet<&String> = names.iter().collect();
        match self.optional.iter().find(|column| !known.contains(column)) {
            None => Ok(()),
            Some(unknown) => {
                let near = nearest(unknown, names.iter().map(String::as_str));
                let near = near.map_or_else(String::new, |name| format!(", did you mean `{name}`?"));
                Err(Fault::user(format!("columns.optional has `{unknown}`, which is not a column of the job{near}")))
            }
        }
    }

    /// Inputs of the model for dense features: one for each number, and one for each indicator.
    pub fn dense_inputs(&self) -> usize {
        self.dense.iter().map(DenseColumn::inputs).sum()
    }

    /// Slots of the model, the crosses included.
    pub fn slot_count(&self) -> usize {
        self.slots.len() + self.crosses.len()
    }

    /// Whether the values of a slot have weights.
    pub fn has_value_weights(&self) -> bool {
        self.slots.iter().any(|slot| slot.weights.is_some())
    }

    /// The statistics that scale a dense feature.
    pub fn statistics_of(&self, column: &str) -> Option<&DenseStatistics> {
        self.statistics.as_ref()?.get(column)
    }

    /// The boundaries that `forebay data stats` has found for a column.
    pub fn quantiles_of(&self, column: &str) -> Option<&[f64]> {
        Some(self.quantiles.as_ref()?.get(column)?)
    }

    /// The boundaries of a slot of the kind `boundaries`; none of other kinds.
    pub fn boundaries_of<'a>(&'a self, slot: &'a Slot) -> &'a [f64] {
        match &slot.boundaries {
            _ if slot.kind != SlotKind::Boundaries => &[],
            Some(boundaries) => boundaries,
            None => self.quantiles_of(&slot.column).unwrap_or_default(),
        }
    }

    /// For each slot the number of its key space; the crosses come last. The spaces of one table have consecutive numbers, in the order of
    /// their first slots. The keys of a batch are in the order of their spaces, and so in the order of their tables.
    pub fn key_spaces(&self) -> Vec<usize> {
        let spaces = self.slots.iter().map(|slot| slot.key_space().to_owned());
        let spaces: Vec<String> = spaces.chain(self.crosses.iter().map(SlotCross::key_space)).collect();
        let tables = self.slot_tables();
        let mut order: Vec<usize> = (0..spaces.len()).collect();
        order.sort_by_key(|&slot| tables[slot]);
        let mut numbers: HashMap<&String, usize> = HashMap::new();
        for slot in order {
            let next = numbers.len();
            numbers.entry(&spaces[slot]).or_insert(next);
        }
        spaces.iter().map(|space| numbers[space]).collect()
    }
}

/// The entries of each column, in their order.
pub(crate) fn by_column<'a, T>(entries: impl Iterator<Item = (&'a String, T)>) -> HashMap<&'a str, Vec<T>> {
    let mut all: HashMap<&str, Vec<T>> = HashMap::new();
    entries.for_each(|(column, entry)| all.entry(column).or_default().push(entry));
    all
}

/// The most columns that a range may stand for.
const MOST_OF_RANGE: u64 = 100_000;

/// `C1..C26` stands for the 26 names, `s01..s26` for 26 with two digits each; any other text for itself.
///
/// # Errors
/// Why a text with two numbered names is not a range.
fn expand(text: &str) -> Result<Vec<String>, String> {
    fn numbered(name: &str) -> Option<(&str, &str)> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        (stem.len() < name.len()).then(|| name.split_at(stem.len()))
    }
    let ends = text.split_once("..").and_then(|(first, last)| Some((numbered(first)?, numbered(last)?)));
    let Some(((stem, first), (last_stem, last))) = ends else { return Ok(vec![text.to_owned()]) };
    let not_a_range = |why: &str| Err(format!("`{text}` is not a range of columns, such as C1..C26: {why}"));
    if stem != last_stem {
        // A bucket may be called `price_1..10` or `age_1.5..2.5`.
        return match last_stem.starts_with(char::is_alphabetic) {
            true => not_a_range("the names before the two numbers differ"),
            false => Ok(vec![text.to_owned()]),
        };
    }
    // If a bound begins with a zero, all numbers have the width of the bounds, which must be the same.
    let padded = |bound: &str| bound.len() > 1 && bound.starts_with('0');
    let width = if padded(first) || padded(last) { first.len() } else { 0 };
    if width != 0 && width != last.len() {
        return not_a_range("with a zero in front, both numbers need the same number of digits");
    }
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(from), Ok(to)) if from > to => not_a_range("the first number is above the last one"),
        (Ok(from), Ok(to)) if to - from < MOST_OF_RANGE => {
            Ok((from..=to).map(|i| format!("{stem}{i:0width$}")).collect())
        }
        _ => not_a_range(&format!("it stands for more than {} columns", commas(MOST_OF_RANGE))),
    }
}

impl Named for DenseColumn {
    const EXPECTED: &'static str = COLUMN;
}

impl Named for Slot {
    const EXPECTED: &'static str = COLUMN;
}

const COLUMN: &str = "a column name, a range such as \"C1..C26\", or a table with `column = ...`";

fn dense_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DenseColumn>, D::Error> {
    let mut dense = Vec::new();
    for entry in list::<D, DenseColumn>(deserializer)? {
        let columns = expand(&entry.column).map_err(D::Error::custom)?;
        dense.extend(columns.into_iter().map(|column| DenseColumn { column, ..entry.clone() }));
    }
    Ok(dense)
}

/// Reads a list of column names and expands each range, such as `C1..C26`, to the names in it.
pub(crate) fn name_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    let expanded: Result<Vec<_>, _> = names.iter().map(|name| expand(name)).collect();
    Ok(expanded.map_err(D::Error::custom)?.concat())
}

fn slot_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Slot>, D::Error> {
    let mut slots = Vec::new();
    for entry in list::<D, Slot>(deserializer)? {
        let columns = expand(&entry.column).map_err(D::Error::custom)?;
        let Some(weights) = &entry.weights else {
            slots.extend(columns.into_iter().map(|column| Slot { column, ..entry.clone() }));
            continue;
        };
        let weights = expand(weights).map_err(D::Error::custom)?;
        if weights.len() != columns.len() {
            return Err(D::Error::custom(format!(
                "`{}` has {} and {} of weights, expected one for each slot",
                entry.column,
                counted(columns.len(), "slot"),
                counted(weights.len(), "column")
            )));
        }
        let pairs = columns.into_iter().zip(weights);
        slots.extend(pairs.map(|(column, weights)| Slot { column, weights: Some(weights), ..entry.clone() }));
    }
    Slot::set_key_spaces_of_times(&mut slots);
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use forebay_connectors::Integers;

    use super::*;

    #[test]
    fn ranges_names_and_tables_mix() {
        let columns: Columns = toml::from_str(
            r#"
            label = "click"
            dense = ["I1..I3", { column = "age", transform = "none" }]
            slots = ["site", { column = "C1..C2", kind = "hex" }, { column = "history", key_space = "site" }]
            "#,
        )
        .unwrap();
        assert_eq!(columns.names(), ["click", "I1", "I2", "I3", "age", "site", "C1", "C2", "history"]);
        assert_eq!(columns.dense[3].transform, Transform::None);
        assert_eq!(columns.slots[2].kind, SlotKind::Hex);
        assert_eq!(columns.key_spaces(), [0, 1, 2, 0]);
    }

    #[test]
    fn columns_of_lists_are_those_whose_options_say_so() {
        let mut columns: Columns = toml::from_str(
            r#"
            label = "y"
            dense = ["a", { column = "vector", length = 4 }]
            slots = ["b", { column = "c", last = 5 }, { column = "d", pooling = "mean" }, { column = "e", weights = "w" }, { column = "f", first = 5 }]
            "#,
        )
        .unwrap();
        let lists = |columns: &Columns| -> Vec<String> {
            let files = columns.in_files(Format::JsonLines).unwrap();
            files.into_iter().filter(|column| column.list).map(|column| column.name).collect()
        };
        assert_eq!(lists(&columns), ["vector", "c", "d", "e", "f", "w"]);
        // As in the training of a model.
        (columns.single, columns.lists) = (vec!["c".into(), "d".into(), "g".into()], vec!["b".into(), "e".into()]);
        assert_eq!(lists(&columns), ["vector", "b", "e", "f", "w"]);
    }

    #[test]
    fn a_column_of_text_has_the_kind_that_all_its_uses_agree_on() {
        let read = |text| toml::from_str::<Columns>(text).unwrap().in_files(Format::Csv);
        let columns = read(
            r#"
            label = "y"
            dense = ["a", "b"]
            slots = ["c", { column = "b", kind = "int" }, { column = "a", kind = "log_bucket" }, { column = "d", kind = "hex" }]
            extra = ["id", "c"]
            "#,
        );
        let kind = |name: &str| columns.as_ref().unwrap().iter().find(|c| c.name == name).unwrap().kind;
        assert_eq!((kind("y"), kind("a"), kind("b")), (ValueKind::Number, ValueKind::Number, ValueKind::Integer));
        assert_eq!((kind("c"), kind("d"), kind("id")), (ValueKind::Text, ValueKind::Hex, ValueKind::Text));
        assert_eq!(columns.as_ref().unwrap().len(), 6);
        let said = read("dense = [\"a\"]\nslots = [\"a\"]").unwrap_err().to_string();
        assert!(said.contains("`a`") && said.contains("numbers") && said.contains("text"), "{said}");
    }

    #[test]
    fn a_column_that_is_nothing_but_keys_wraps_and_one_of_strings_is_text_as_a_folder() {
        let columns: Columns = toml::from_str(
            r#"
            dense = ["b"]
            slots = [{ column = "a", kind = "int" }, { column = "b", kind = "int" }, { column = "c", kind = "string" }, "d"]
            "#,
        )
        .unwrap();
        let read = columns.in_files(Format::Csv).unwrap();
        let of =
            |name: &str| read.iter().find(|column| column.name == name).map(|c| (c.integers, c.folder_text)).unwrap();
        assert_eq!(of("a"), (Integers::Wrapping, false));
        assert_eq!(of("b"), (Integers::Signed, false), "a dense feature may not wrap");
        assert_eq!((of("c"), of("d")), ((Integers::Signed, true), (Integers::Signed, false)));
        assert!(columns.in_typed_files().iter().any(|column| column.name == "c" && column.folder_text));
    }

    /// Takes minutes if a loop over the columns goes through all of them for each.
    #[test]
    fn tens_of_thousands_of_columns_are_checked_and_found_by_name() {
        let columns: Columns = toml::from_str(
            r#"
            dense = ["d1..d50000"]
            slots = ["s1..s50000", { column = "t1..t50000", key_space = "t", kind = "int" }, { column = "s7", kind = "int", key_space = "n" }]
            optional = ["t1..t50000"]
            "#,
        )
        .unwrap();
        columns.check_twice().unwrap();
        columns.check().unwrap();
        assert_eq!(columns.in_typed_files().len(), 150_001);
        let spaces = columns.key_spaces();
        assert_eq!(
            [0, 49_999, 50_000, 99_999, 100_000].map(|slot: usize| spaces[slot]),
            [0, 49_999, 50_000, 50_000, 50_001]
        );
        let said = columns.in_files(Format::Csv).unwrap_err().to_string();
        assert!(said.contains("`s7` of text is read both as text and as integers"), "{said}");
    }

    #[test]
    fn unknown_fields_are_refused_inside_tables() {
        let error = toml::from_str::<Columns>(r#"slots = [{ column = "a", knd = "hex" }]"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `knd`"), "{error}");
    }

    #[test]
    fn ranges_keep_the_zeros_in_front_of_their_bounds() {
        let names = |text| expand(text).unwrap();
        assert_eq!(names("s09..s11"), ["s09", "s10", "s11"]);
        assert_eq!(names("s00..s01"), ["s00", "s01"]);
        assert_eq!(names("s0..s2"), ["s0", "s1", "s2"]);
        assert_eq!(names("s099..s101"), ["s099", "s100", "s101"]);
        assert_eq!(names("s9..s11"), ["s9", "s10", "s11"]);
    }

    #[test]
    fn only_real_ranges_expand() {
        assert_eq!(expand("C1..C3").unwrap(), ["C1", "C2", "C3"]);
        for name in ["a..b", "plain", "price_1..10", "age_1.5..2.5", "C1..", "..C3"] {
            assert_eq!(expand(name).unwrap(), [name]);
        }
        for (text, why) in [
            ("C3..C1", "above the last"),
            ("C1..D3", "names before the two numbers differ"),
            ("C1..C99999999", "more than 100,000 columns"),
            ("C1..C99999999999999999999", "more than 100,000 columns"),
            ("s01..s100", "same number of digits"),
            ("s1..s02", "same number of digits"),
            ("s00..s5", "same number of digits"),
        ] {
            let said = expand(text).unwrap_err();
            assert!(said.contains(text) && said.contains(why), "{said}");
        }
        let said = toml::from_str::<Columns>("dense = [\"I13..I1\"]").unwrap_err().to_string();
        assert!(said.contains("`I13..I1` is not a range of columns"), "{said}");
    }
}
