//! Checks the features of time, `hour`, `weekday` and ages: the units of their integers and their offsets from UTC.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use forebay_actors::Fault;

use super::unix_unit::{UnixUnit, offset_microseconds};
use super::{Columns, DenseColumn, Slot};

/// A column that a feature reads as times.
pub(super) struct TimeUse<'a> {
    pub(super) column: &'a str,
    /// The unit of its integers.
    pub(super) unit: Option<UnixUnit>,
    /// The field that says the unit, and the list of its feature.
    field: (&'static str, &'static str),
}

impl TimeUse<'_> {
    fn shown(&self) -> String {
        let (field, list) = self.field;
        match self.unit {
            Some(unit) => format!("{field} = {:?} in {list}", unit.name()),
            None => format!("no {field} in {list}"),
        }
    }
}

impl Columns {
    /// Whether a dense feature or a slot counts integers as times or has an offset from UTC. Older programs do not know these fields.
    pub fn has_times_of_integers_or_offsets(&self) -> bool {
        let of_dense =
            |dense: &DenseColumn| dense.unit.is_some() || dense.at_unit.is_some() || dense.utc_offset.is_some();
        let of_slot = |slot: &Slot| slot.unit.is_some() || slot.utc_offset.is_some();
        self.dense.iter().any(of_dense) || self.slots.iter().any(of_slot)
    }

    /// The columns that features read as times, as often as they are used.
    pub(super) fn times(&self) -> impl Iterator<Item = TimeUse<'_>> {
        let in_dense = "columns.dense";
        let dense = self.dense.iter().filter(|dense| dense.transform.is_of_time()).map(move |dense| TimeUse {
            column: &dense.column,
            unit: dense.unit,
            field: ("unit", in_dense),
        });
        let at = self.dense.iter().filter_map(move |dense| {
            Some(TimeUse { column: dense.at_column()?, unit: dense.unit_of_at(), field: ("at_unit", in_dense) })
        });
        let slots = self.slots.iter().filter(|slot| slot.kind.is_of_time()).map(|slot| TimeUse {
            column: &slot.column,
            unit: slot.unit,
            field: ("unit", "columns.slots"),
        });
        dense.chain(at).chain(slots)
    }

    /// The columns that are read as times with a unit, and as nothing else: their numbers may have fractions in all formats.
    pub fn only_times(&self) -> HashSet<&str> {
        let mut only: HashSet<&str> = self.times().filter(|time| time.unit.is_some()).map(|time| time.column).collect();
        let labels = self.label.iter().map(|label| &label.column).chain(&self.weight);
        let dense = self.dense.iter().filter(|dense| !dense.transform.is_of_time()).map(|dense| &dense.column);
        let slots = self.slots.iter().filter(|slot| !slot.kind.is_of_time()).map(|slot| &slot.column);
        let weights = self.slots.iter().filter_map(|slot| slot.weights.as_ref());
        for other in labels.chain(dense).chain(slots).chain(weights) {
            only.remove(other.as_str());
        }
        only
    }

    /// Checks the units and the offsets of all features.
    ///
    /// # Errors
    /// A user fault that names the column and the field.
    pub(super) fn check_times(&self) -> Result<(), Fault> {
        self.check_times_of_dense()?;
        self.check_times_of_slots()?;
        let mut first: HashMap<&str, TimeUse<'_>> = HashMap::new();
        for time in self.times() {
            match first.entry(time.column) {
                Entry::Vacant(entry) => {
                    entry.insert(time);
                }
                Entry::Occupied(entry) if entry.get().unit != time.unit => {
                    return Err(Fault::user(format!(
                        "columns: `{}` has {}, and {}: give it the same unit wherever it is a time, that of its integers",
                        time.column,
                        entry.get().shown(),
                        time.shown()
                    )));
                }
                Entry::Occupied(_) => {}
            }
        }
        Ok(())
    }

    fn check_times_of_dense(&self) -> Result<(), Fault> {
        for dense in &self.dense {
            let refuse = |what: String| Err(Fault::user(format!("columns.dense: `{}`: {what}", dense.column)));
            let is_part = dense.transform.is_calendar_part();
            if dense.unit.is_some() && !dense.transform.is_of_time() {
                return refuse(
                    "unit is for transform = \"hour\", \"weekday\", \"age_days\" or \"age_hours\": set one, or leave it out"
                        .into(),
                );
            }
            if dense.at_unit.is_some() && dense.at_column().is_none() {
                return refuse("at_unit is that of a column in `at`: name a column there, or leave it out".into());
            }
            if dense.utc_offset.is_some() && dense.transform.is_age() {
                return refuse("an age is the same at every offset from UTC: leave utc_offset out".into());
            }
            if dense.utc_offset.is_some() && !is_part {
                return refuse(
                    "utc_offset is for transform = \"hour\" or \"weekday\": set one, or leave it out".into(),
                );
            }
            check_offset(dense.utc_offset.as_deref()).or_else(refuse)?;
        }
        Ok(())
    }

    fn check_times_of_slots(&self) -> Result<(), Fault> {
        for slot in &self.slots {
            let refuse = |what: String| Err(Fault::user(format!("columns.slots: `{}`: {what}", slot.column)));
            let is_part = slot.kind.is_of_time();
            for (field, is_set) in [("unit", slot.unit.is_some()), ("utc_offset", slot.utc_offset.is_some())] {
                if is_set && !is_part {
                    return refuse(format!("{field} is for kind = \"hour\" or \"weekday\": set one, or leave it out"));
                }
            }
            check_offset(slot.utc_offset.as_deref()).or_else(refuse)?;
        }
        Ok(())
    }
}

fn check_offset(text: Option<&str>) -> Result<(), String> {
    match text {
        Some(text) if offset_microseconds(text).is_none() => Err(format!(
            "utc_offset is {text:?}, expected hours and minutes of at most 14 hours, such as \"+05:30\" or \"-08:00\"; the name \
             of a time zone is no offset"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use forebay_connectors::{Format, Integers, ValueKind};

    use super::*;

    fn columns(text: &str) -> Result<Columns, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn units_and_offsets_without_meaning_are_refused_by_name() {
        let check = |text: &str| columns(text)?.check().map_err(|fault| fault.to_string());
        for (text, words) in [
            ("dense = [{ column = 't', unit = 's' }]", "columns.dense: `t`: unit is for transform = \"hour\""),
            ("dense = [{ column = 't', transform = 'log1p', unit = 's' }]", "unit is for transform"),
            (
                "dense = [{ column = 't', transform = 'hour', unit = 'sec' }]",
                "unknown variant `sec`, expected one of `s`",
            ),
            ("dense = [{ column = 't', transform = 'hour', at_unit = 's' }]", "at_unit is that of a column in `at`"),
            (
                "dense = [{ column = 't', transform = 'age_days', at = '2026-01-01', at_unit = 's' }]",
                "at_unit is that of a column in `at`",
            ),
            (
                "dense = [{ column = 't', transform = 'age_days', at = 'u', utc_offset = '+01:00' }]",
                "an age is the same at every offset",
            ),
            (
                "dense = [{ column = 't', utc_offset = '+01:00' }]",
                "utc_offset is for transform = \"hour\" or \"weekday\"",
            ),
            (
                "dense = [{ column = 't', transform = 'hour', utc_offset = 'Asia/Kolkata' }]",
                "utc_offset is \"Asia/Kolkata\", expected hours and minutes",
            ),
            (
                "slots = [{ column = 't', unit = 'ms' }]",
                "columns.slots: `t`: unit is for kind = \"hour\" or \"weekday\"",
            ),
            ("slots = [{ column = 't', kind = 'int', utc_offset = '+01:00' }]", "utc_offset is for kind = \"hour\""),
            ("slots = [{ column = 't', kind = 'hour', utc_offset = '+15:00' }]", "`t`: utc_offset is \"+15:00\""),
            ("slots = [{ column = 't', kind = 'hour', at_unit = 's' }]", "unknown field `at_unit`"),
            (
                "dense = [{ column = 't', transform = 'hour', unit = 's' }]\nslots = [{ column = 't', kind = 'weekday' }]",
                "`t` has unit = \"s\" in columns.dense, and no unit in columns.slots",
            ),
            (
                "dense = [{ column = 'a', transform = 'age_days', at = 't', unit = 's' }]\n\
                 slots = [{ column = 't', kind = 'hour', unit = 'ms' }]",
                "`t` has at_unit = \"s\" in columns.dense, and unit = \"ms\" in columns.slots",
            ),
        ] {
            let said = check(text).unwrap_err();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
        check(
            "dense = [{ column = 'a', transform = 'age_days', at = 't', unit = 's', at_unit = 'ms' }, \
             { column = 't', transform = 'hour', unit = 'ms', utc_offset = '-03:30', scale = 'min_max' }, \
             { column = 't', transform = 'none' }]\n\
             slots = [{ column = 't', kind = 'weekday', unit = 'ms', utc_offset = '+14:00' }]\n\
             statistics = { t = { mean = 9, std = 3, min = 0, max = 23, transform = 'hour' } }",
        )
        .unwrap();
    }

    #[test]
    fn hours_at_several_offsets_are_other_values() {
        let check = |text: &str| columns(text)?.check().map_err(|fault| fault.to_string());
        let slots = "slots = [{ column = 't', kind = 'hour' }, { column = 't', kind = 'hour', utc_offset = '+01:00'";
        let said = check(&format!("{slots} }}]")).unwrap_err();
        assert!(said.contains("share the key space `t` with different offsets from UTC"), "{said}");
        check(&format!("{slots}, key_space = 'local' }}]")).unwrap();
        check("slots = [{ column = 't', kind = 'hour' }, { column = 't', kind = 'hour', utc_offset = '-00:00' }]")
            .unwrap();
        let said = check(
            "dense = [{ column = 't', transform = 'hour', scale = 'min_max' }, \
             { column = 't', transform = 'hour', utc_offset = '+01:00', scale = 'min_max' }]\n\
             statistics = { t = { mean = 9, std = 3, min = 0, max = 23, transform = 'hour' } }",
        );
        let said = said.unwrap_err();
        assert!(said.contains("need other statistics") && said.contains("utc_offset = \"+01:00\""), "{said}");
    }

    #[test]
    fn text_has_integers_where_a_unit_says_so() {
        let columns = columns(
            "dense = [{ column = 'a', transform = 'age_days', at = 'b', unit = 's' }, { column = 'a', transform = 'none' }, \
             { column = 'c', transform = 'hour' }, { column = 'd', transform = 'age_hours', at = 'e', at_unit = 'ns' }]\n\
             slots = [{ column = 'f', kind = 'weekday', unit = 'us' }, { column = 'b', kind = 'int' }, \
             { column = 'g', kind = 'hour' }]",
        );
        let columns = columns.unwrap();
        let files = columns.in_files(Format::Csv).unwrap();
        let kind =
            |name: &str| files.iter().find(|file| file.name == name).map(|file| (file.kind, file.integers)).unwrap();
        // `a` is a dense feature, too, and `b` a slot of integers: numbers of other formats are refused if they have fractions.
        for (name, integers) in [
            ("a", Integers::Signed),
            ("b", Integers::Signed),
            ("e", Integers::RoundedDown),
            ("f", Integers::RoundedDown),
        ] {
            assert_eq!(kind(name), (ValueKind::Integer, integers), "{name}");
        }
        assert!(["c", "d", "g"].into_iter().all(|name| kind(name).0 == ValueKind::Text));
        let mixed: Columns = toml::from_str("dense = ['t']\nslots = [{ column = 't', kind = 'hour' }]").unwrap();
        let said = mixed.in_files(Format::JsonLines).unwrap_err().to_string();
        assert!(said.contains("`t` of text is read both as numbers and as text") && said.contains("a unit"), "{said}");
    }

    #[test]
    fn columns_without_units_and_offsets_have_no_field_more() {
        let text = toml::to_string(&Columns::default()).unwrap();
        assert!(!text.contains("unit") && !text.contains("utc_offset"), "{text}");
        let with = "slots = [{ column = 't', kind = 'hour', unit = 'ms', utc_offset = '+05:30' }]";
        let columns = columns(with).unwrap();
        assert!(columns.has_times_of_integers_or_offsets() && !Columns::default().has_times_of_integers_or_offsets());
        assert_eq!(toml::from_str::<Columns>(&toml::to_string(&columns).unwrap()).unwrap(), columns);
    }
}
