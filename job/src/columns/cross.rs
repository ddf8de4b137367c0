//! A cross: a slot whose values are the combinations of the values of other slots.

use std::fmt;

use forebay_actors::{Fault, counted};
use forebay_base::nearest;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Columns;
use super::slot::check_buckets;

/// A cross of slots (Cheng et al., DLRS 2016). It has a key for each combination of their keys: of lists, for each pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotCross {
    /// The columns of two or three slots, such as `["user", "category"]`; their order counts.
    pub columns: Vec<String>,
    /// The number of buckets that combinations are hashed into, for instance `1_000_000`. Default: each combination has its own key.
    /// At least 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    /// The table of `[tables]` that has its rows, for instance `wide`. Default: `[table]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

/// A list of crosses. Refuses a list in place of a cross, and shows the table that is expected; the derived code would take the values of
/// the list for the fields, in their order.
pub(super) fn cross_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SlotCross>, D::Error> {
    struct Entry(SlotCross);
    struct Cross;

    fn refuse<E: de::Error>(found: &str, columns: &[String]) -> E {
        E::custom(format!("found {found}, expected a table of its columns, such as {{ columns = {columns:?} }}"))
    }

    impl<'de> Visitor<'de> for Cross {
        type Value = SlotCross;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of its columns, such as { columns = [\"a\", \"b\"] }")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SlotCross, A::Error> {
            SlotCross::deserialize(MapAccessDeserializer::new(map))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<SlotCross, A::Error> {
            let mut columns: Vec<String> = Vec::new();
            while let Some(column) = list.next_element()? {
                columns.push(column);
            }
            Err(refuse(&format!("the list {columns:?}"), &columns))
        }

        fn visit_str<E: de::Error>(self, column: &str) -> Result<SlotCross, E> {
            Err(refuse(&format!("the text {column:?}"), &[column.to_owned(), "another".to_owned()]))
        }
    }

    impl<'de> Deserialize<'de> for Entry {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(Cross).map(Entry)
        }
    }

    Ok(Vec::<Entry>::deserialize(deserializer)?.into_iter().map(|entry| entry.0).collect())
}

impl SlotCross {
    /// The name that its keys are hashed with, and that messages show.
    pub fn key_space(&self) -> String {
        self.columns.join(" x ")
    }

    /// The slots that it combines, by their number in `slots`. Their columns were checked.
    pub fn slots(&self, columns: &Columns) -> Vec<usize> {
        self.columns.iter().filter_map(|name| columns.slots.iter().position(|slot| slot.column == *name)).collect()
    }

    pub(super) fn check(&self, columns: &Columns) -> Result<(), Fault> {
        let refuse = |what: String| Err(Fault::user(format!("columns.crosses: `{}`: {what}", self.key_space())));
        if !(2..=3).contains(&self.columns.len()) {
            return refuse(format!("{}, expected 2 or 3", counted(self.columns.len(), "column")));
        }
        for (at, name) in self.columns.iter().enumerate() {
            if self.columns[..at].contains(name) {
                return refuse(format!("`{name}` is there twice"));
            }
            match columns.slots.iter().filter(|slot| slot.column == *name).count() {
                1 => {}
                0 => {
                    let near = nearest(name, columns.slots.iter().map(|slot| slot.column.as_str()));
                    let near = near.map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
                    return refuse(format!("`{name}` is not the column of a slot{near}"));
                }
                n => return refuse(format!("`{name}` is the column of {n} slots, so it is not clear which is meant")),
            }
        }
        let same = columns.crosses.iter().filter(|other| other.columns == self.columns).count();
        if same > 1 {
            return refuse(format!("it is there {same} times"));
        }
        check_buckets(self.buckets, || format!("columns.crosses: `{}`", self.key_space()))
    }
}

#[cfg(test)]
mod tests {
    use crate::Columns;

    #[test]
    fn a_list_in_the_place_of_a_cross_is_refused_with_the_table_that_it_should_be() {
        for (crosses, words) in [
            (
                "[['site', 'user']]",
                "found the list [\"site\", \"user\"], expected a table of its columns, such as { columns = [\"site\", \"user\"] }",
            ),
            ("[[['site'], 10]]", "expected text"),
            ("['site']", "found the text \"site\", expected a table of its columns, such as { columns = [\"site\","),
            ("[7]", "expected a table of its columns, such as { columns ="),
            ("[{ column = ['a', 'b'] }]", "did you mean `columns`?"),
        ] {
            let said = crate::Job::from_toml(&format!("columns.crosses = {crosses}"), &[]).unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }

    #[test]
    fn crosses_combine_two_or_three_slots_that_are_there_once() {
        let check = |crosses: &str| {
            let slots = "['site', 'user', 'item', 'age', { column = 'age', kind = 'log_bucket', key_space = 'b' }]";
            toml::from_str::<Columns>(&format!("slots = {slots}\ncrosses = [{crosses}]")).unwrap().check()
        };
        check("{ columns = ['site', 'user', 'item'] }, { columns = ['user', 'site'], buckets = 100 }").unwrap();
        for (crosses, words) in [
            ("{ columns = ['site'] }", "`site`: 1 column, expected 2 or 3"),
            ("{ columns = ['site', 'site'] }", "`site` is there twice"),
            ("{ columns = ['site', 'usr'] }", "`usr` is not the column of a slot, did you mean `user`?"),
            ("{ columns = ['site', 'age'] }", "the column of 2 slots"),
            ("{ columns = ['site', 'user'], buckets = 1 }", "`site x user`: buckets is 1, expected at least 2"),
            ("{ columns = ['site', 'user'] }, { columns = ['site', 'user'], buckets = 9 }", "it is there 2 times"),
        ] {
            let said = check(crosses).unwrap_err().to_string();
            assert!(said.contains(words), "no {words:?} in: {said}");
        }
    }
}
