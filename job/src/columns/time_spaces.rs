//! Gives the hour and the day of the week of one column key spaces of their own: every log with timestamps has both, and the column's name
//! would be the key space of both.

use std::collections::HashSet;

use super::{Slot, SlotKind, by_column};

impl Slot {
    /// Sets the key space of each slot of a time kind, `COLUMN.KIND`, that shares its column with a slot of another kind, if neither has a
    /// `key_space` and no slot names the column there. Such slots were refused, so no model has other keys for them.
    pub(super) fn set_key_spaces_of_times(slots: &mut [Self]) {
        let named: HashSet<&str> = slots.iter().filter_map(|slot| slot.key_space.as_deref()).collect();
        let unnamed = slots.iter().filter(|slot| slot.key_space.is_none() && !named.contains(slot.column.as_str()));
        let kinds = by_column(unnamed.map(|slot| (&slot.column, slot.kind)));
        let is_apart = |slot: &Self| {
            let kinds = kinds.get(slot.column.as_str()).filter(|_| slot.kind.is_of_time() && slot.key_space.is_none());
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| ![slot.kind, SlotKind::Auto].contains(kind)))
        };
        let apart: Vec<bool> = slots.iter().map(is_apart).collect();
        for (slot, _) in slots.iter_mut().zip(apart).filter(|(_, apart)| *apart) {
            slot.key_space = Some(format!("{}.{}", slot.column, slot.kind.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Columns;

    #[test]
    fn only_slots_that_were_refused_get_a_key_space_of_their_kind() {
        let spaces = |slots: &str| {
            let columns: Columns = toml::from_str(&format!("slots = [{slots}]")).unwrap();
            columns.check().map_err(|fault| fault.to_string())?;
            // A saved model has the same key spaces.
            assert_eq!(toml::from_str::<Columns>(&toml::to_string(&columns).unwrap()).unwrap(), columns);
            Ok::<_, String>(columns.slots.iter().map(|slot| slot.key_space().to_owned()).collect::<Vec<_>>())
        };
        let (hour, weekday) = ("{ column = 't', kind = 'hour' }", "{ column = 't', kind = 'weekday' }");
        assert_eq!(spaces(&format!("{hour}, {weekday}")).unwrap(), ["t.hour", "t.weekday"]);
        assert_eq!(spaces(&format!("{weekday}, 'u', {hour}")).unwrap(), ["t.weekday", "u", "t.hour"]);
        let int = "{ column = 't', kind = 'int' }";
        assert_eq!(spaces(&format!("{int}, {hour}, {weekday}")).unwrap(), ["t", "t.hour", "t.weekday"]);
        // Slots that were accepted keep their keys.
        assert_eq!(spaces(hour).unwrap(), ["t"]);
        assert_eq!(
            spaces(&format!("{hour}, {}", hour.replace(" }", ", buckets = 9, key_space = 'b' }"))).unwrap(),
            ["t", "b"]
        );
        let own = weekday.replace(" }", ", key_space = 'day' }");
        assert_eq!(spaces(&format!("{hour}, {own}")).unwrap(), ["t", "day"]);
        assert_eq!(spaces(&format!("'t', {hour}")).unwrap(), ["t", "t"], "the types of the rows decide");
        assert_eq!(spaces(&format!("{hour}, {{ column = 'u', kind = 'hour', key_space = 't' }}")).unwrap(), ["t", "t"]);
        // A slot that names the column's key space says with whom it shares.
        let shared = "{ column = 'u', kind = 'hour', key_space = 't' }";
        assert!(spaces(&format!("{hour}, {weekday}, {shared}")).unwrap_err().contains("the key space `t`"));
    }
}
