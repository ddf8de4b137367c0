//! Refuses slots that share a key space but hash their values in different ways: they would share no rows, or rows of unrelated values.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use forebay_actors::Fault;

use super::{Columns, Slot, SlotCross, SlotKind};

/// What a number that is hashed stands for. Slots of one key space must agree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hashed {
    /// Integers, which hexadecimal strings stand for, too.
    Integer,
    Text,
    LogBucket,
    Boundaries,
    Hour,
    Weekday,
}

fn hashed(kind: SlotKind) -> Option<Hashed> {
    Some(match kind {
        SlotKind::Auto => return None,
        SlotKind::Int | SlotKind::Hex => Hashed::Integer,
        SlotKind::String => Hashed::Text,
        SlotKind::LogBucket => Hashed::LogBucket,
        SlotKind::Boundaries => Hashed::Boundaries,
        SlotKind::Hour => Hashed::Hour,
        SlotKind::Weekday => Hashed::Weekday,
    })
}

/// The earlier slots of a key space, which are alike.
struct Space<'a> {
    first: &'a Slot,
    /// The first whose kind is not `auto`.
    first_of_kind: Option<&'a Slot>,
}

/// `kind` gives the kind of a slot; slots of the kind `auto` are not compared.
///
/// # Errors
/// A user fault that names two slots and their key space.
pub fn check_key_spaces(columns: &Columns, kind: impl Fn(&Slot) -> SlotKind) -> Result<(), Fault> {
    let crosses: HashSet<String> = columns.crosses.iter().map(SlotCross::key_space).collect();
    let mut spaces: HashMap<&str, Space> = HashMap::new();
    for slot in &columns.slots {
        let of_kind = hashed(kind(slot)).map(|_| slot);
        match spaces.entry(slot.key_space()) {
            Entry::Vacant(space) => {
                space.insert(Space { first: slot, first_of_kind: of_kind });
            }
            Entry::Occupied(mut space) => {
                let space = space.get_mut();
                check_hashes(columns, space.first, slot, &kind)?;
                space.first_of_kind.map_or(Ok(()), |other| check_hashes(columns, other, slot, &kind))?;
                check_table(space.first, slot)?;
                space.first_of_kind = space.first_of_kind.or(of_kind);
            }
        }
        if crosses.contains(slot.key_space()) {
            return Err(Fault::user(format!(
                "columns.slots: `{}` has the key space `{}`, which is that of a cross: give it another key_space",
                slot.column,
                slot.key_space()
            )));
        }
    }
    Ok(())
}

/// Refuses two slots of one key space that hash their values in different ways.
fn check_hashes(columns: &Columns, other: &Slot, slot: &Slot, kind: impl Fn(&Slot) -> SlotKind) -> Result<(), Fault> {
    let kinds = (kind(other), kind(slot));
    let differ = hashed(kinds.0).zip(hashed(kinds.1)).is_some_and(|(a, b)| a != b);
    let cuts = columns.boundaries_of(other) != columns.boundaries_of(slot);
    let of_time = kinds.0.is_of_time() && kinds.1.is_of_time();
    let offsets = of_time && other.utc_offset_microseconds() != slot.utc_offset_microseconds();
    if !differ && !cuts && !offsets && other.buckets == slot.buckets {
        return Ok(());
    }
    let what = match (differ, cuts, offsets) {
        (true, ..) => "kinds",
        (_, true, _) => "boundaries",
        (.., true) => "offsets from UTC",
        _ => "numbers of buckets",
    };
    Err(Fault::user(format!(
        "columns.slots: {} and {} share the key space `{}` with different {what}, so equal values would not share rows, and \
         others would: give one of them another key_space",
        shown(other, kinds.0),
        shown(slot, kinds.1),
        slot.key_space()
    )))
}

/// Refuses two slots of one key space whose tables differ.
fn check_table(other: &Slot, slot: &Slot) -> Result<(), Fault> {
    if other.table == slot.table {
        return Ok(());
    }
    let table = |slot: &Slot| slot.table.as_ref().map_or("[table]".into(), |name| format!("[tables.{name}]"));
    Err(Fault::user(format!(
        "columns.slots: `{}` and `{}` share the key space `{}`, and so their rows, but the tables are {} and {}: give them one \
         table, or one of them another key_space",
        other.column,
        slot.column,
        slot.key_space(),
        table(other),
        table(slot)
    )))
}

fn shown(slot: &Slot, kind: SlotKind) -> String {
    let buckets = slot.buckets.map_or_else(String::new, |buckets| format!(", {buckets} buckets"));
    format!("`{}` ({}{buckets})", slot.column, kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_one_key_space_hash_alike_or_are_refused() {
        let check = |slots: &str| toml::from_str::<Columns>(&format!("slots = [{slots}]")).unwrap().check();
        for fine in [
            "{ column = 'a', kind = 'hex' }, { column = 'b', key_space = 'a' }, { column = 'c', key_space = 'a', kind = 'int' }",
            "{ column = 'a', kind = 'int' }, { column = 'a', kind = 'log_bucket', key_space = 'counts of a' }",
            "{ column = 'a', kind = 'int', buckets = 9 }, { column = 'b', kind = 'int', buckets = 9, key_space = 'a' }",
        ] {
            check(fine).unwrap();
        }
        for (slots, words) in [
            (
                "{ column = 'a', kind = 'hex' }, { column = 'b', kind = 'string', key_space = 'a' }",
                "`a` (hex) and `b` (string)",
            ),
            ("{ column = 'a', kind = 'int' }, { column = 'a', kind = 'log_bucket' }", "the key space `a`"),
            (
                "'a', { column = 'b', kind = 'int', key_space = 'a' }, { column = 'c', kind = 'string', key_space = 'a' }",
                "`b` (int) and `c` (string)",
            ),
            (
                "{ column = 'a', kind = 'hour', key_space = 'a' }, { column = 'a', kind = 'weekday', key_space = 'a' }",
                "different kinds",
            ),
            ("'a', { column = 'b', buckets = 9, key_space = 'a' }", "different numbers of buckets"),
            (
                "{ column = 'a', kind = 'boundaries', boundaries = [1, 2] }, \
                 { column = 'b', kind = 'boundaries', boundaries = [1, 3], key_space = 'a' }",
                "different boundaries",
            ),
        ] {
            let said = check(slots).unwrap_err().to_string();
            assert!(said.contains(words) && said.contains("another key_space"), "no {words:?} in: {said}");
        }
        let text = "slots = ['a', 'b', { column = 'c', key_space = 'a x b' }]\ncrosses = [{ columns = ['a', 'b'] }]";
        let said = toml::from_str::<Columns>(text).unwrap().check().unwrap_err().to_string();
        assert!(said.contains("that of a cross"), "{said}");
    }
}
