//! Refuses a dense feature or a slot that a job names twice: a slip, which would only double its weight.

use std::collections::HashMap;

use forebay_actors::Fault;

use super::Columns;

impl Columns {
    /// Refuses an entry that is the same as an earlier one. One column with other options, such as another transform, is another feature.
    pub(crate) fn check_twice(&self) -> Result<(), Fault> {
        if let Some(twice) = first_twice(&self.dense, |dense| &dense.column) {
            return Err(Fault::user(format!(
                "columns.dense has `{}` twice: leave one out, or give one another transform",
                twice.column
            )));
        }
        if let Some(twice) = first_twice(&self.slots, |slot| &slot.column) {
            return Err(Fault::user(format!(
                "columns.slots has `{}` twice: leave one out, or give one a key_space of its own for other keys",
                twice.column
            )));
        }
        Ok(())
    }
}

/// The first entry that is the same as an earlier one.
fn first_twice<'a, T: PartialEq>(entries: &'a [T], column: impl Fn(&'a T) -> &'a String) -> Option<&'a T> {
    let mut earlier: HashMap<&String, Vec<&T>> = HashMap::new();
    entries.iter().find(|entry| {
        let of_column = earlier.entry(column(entry)).or_default();
        let is_there = of_column.contains(entry);
        of_column.push(entry);
        is_there
    })
}

#[cfg(test)]
mod tests {
    use crate::Columns;

    #[test]
    fn an_entry_that_stands_there_twice_is_refused_and_other_options_are_another_feature() {
        let check =
            |text: &str| toml::from_str::<Columns>(text).unwrap().check_twice().map_err(|fault| fault.to_string());
        let said = check("dense = ['I1..I3', 'I2']").unwrap_err();
        assert!(said.contains("columns.dense has `I2` twice"), "{said}");
        let said = check("slots = ['C1..C3', 'C3']").unwrap_err();
        assert!(said.contains("columns.slots has `C3` twice"), "{said}");
        check("dense = ['I1', { column = 'I1', transform = 'log' }]\nslots = ['h', { column = 'h', last = 5 }]")
            .unwrap();
    }
}
