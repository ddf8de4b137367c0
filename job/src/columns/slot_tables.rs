//! The table of each slot's rows.

use std::collections::{HashMap, HashSet};

use super::{Columns, Slot, by_column};

impl Columns {
    /// The tables of `[tables]` that slots and crosses name, in the order in which they are first named. Their numbers count from 1; 0 is
    /// `[table]`.
    pub fn named_tables(&self) -> Vec<&str> {
        if !self.tables.is_empty() {
            return self.tables.iter().map(String::as_str).collect();
        }
        let of_slots = self.slots.iter().map(|slot| slot.table.as_deref());
        let all = of_slots.chain(self.crosses.iter().map(|cross| cross.table.as_deref())).flatten();
        let mut seen = HashSet::new();
        all.filter(|name| seen.insert(*name)).collect()
    }

    /// For each slot the number of its table, the crosses last.
    pub fn slot_tables(&self) -> Vec<usize> {
        let numbers: HashMap<&str, usize> = self.named_tables().into_iter().zip(1..).collect();
        let number =
            |name: &Option<String>| name.as_deref().and_then(|name| numbers.get(name).copied()).unwrap_or_default();
        let of_slots = self.slots.iter().map(|slot| number(&slot.table));
        of_slots.chain(self.crosses.iter().map(|cross| number(&cross.table))).collect()
    }

    /// The names of slots and crosses, as messages show them, in the order of [`slot_tables`](Self::slot_tables): their columns. Slots of
    /// one column are distinguished by their kinds, such as `ts (hour)`, or their key spaces.
    pub fn slot_names(&self) -> Vec<String> {
        let slots = by_column(self.slots.iter().map(|slot| (&slot.column, slot)));
        let name = |slot: &Slot| match &slots[slot.column.as_str()][..] {
            [_] => slot.column.clone(),
            several if several.iter().filter(|other| other.kind == slot.kind).count() == 1 => {
                format!("{} ({})", slot.column, slot.kind.name())
            }
            _ => format!("{} (key space {})", slot.column, slot.key_space()),
        };
        let of_slots = self.slots.iter().map(name);
        of_slots.chain(self.crosses.iter().map(super::SlotCross::key_space)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: a message about the hour and the day of the week of a column did not say which.
    #[test]
    fn slots_of_one_column_have_different_names() {
        let columns: Columns = toml::from_str(
            "slots = [{ column = 'ts', kind = 'hour' }, { column = 'ts', kind = 'weekday' }, 'a', \
             { column = 'h', last = 2 }, { column = 'h', first = 1, key_space = 'firsts' }]\n\
             crosses = [{ columns = ['a', 'ts'] }]",
        )
        .unwrap();
        let names = ["ts (hour)", "ts (weekday)", "a", "h (key space h)", "h (key space firsts)", "a x ts"];
        assert_eq!(columns.slot_names(), names);
    }

    #[test]
    fn tables_count_in_the_order_of_first_sight_and_key_spaces_table_by_table() {
        let text = "slots = ['a', { column = 'b', table = 'y' }, { column = 'c', table = 'x' }, 'd', { column = 'e', table = 'y', key_space = 'b' }]\n\
                    crosses = [{ columns = ['a', 'd'], table = 'z' }, { columns = ['a', 'b'] }]";
        let columns: Columns = toml::from_str(text).unwrap();
        assert_eq!(columns.named_tables(), ["y", "x", "z"]);
        assert_eq!(columns.slot_tables(), [0, 1, 2, 0, 1, 3, 0]);
        assert_eq!(columns.key_spaces(), [0, 3, 4, 1, 3, 5, 2]);
        columns.check().unwrap();
    }
}
