//! Finds the columns of rows by name. Rows mostly have their columns in the same order, so it looks first at the column that came next in
//! the row before, and only then hashes the name.

use super::serving_columns::ServingColumns;

pub(super) struct ColumnOrder<'c> {
    columns: &'c ServingColumns,
    /// For each column the one that came after it; at the end, the first one of a row.
    after: Vec<usize>,
    /// The column that was found last; `columns.len()` at the beginning of a row.
    last: usize,
}

impl<'c> ColumnOrder<'c> {
    /// Begins with the order of the model.
    pub(super) fn new(columns: &'c ServingColumns) -> Self {
        let count = columns.columns.len();
        Self { columns, after: (1..=count).chain([0]).collect(), last: count }
    }

    pub(super) fn begin_row(&mut self) {
        self.last = self.columns.columns.len();
    }

    /// The place of the next column of a row, as [`ServingColumns::place`].
    pub(super) fn place(&mut self, name: &str) -> Result<usize, String> {
        let expected = &mut self.after[self.last];
        if self.columns.columns.get(*expected).is_none_or(|column| column.name != name) {
            *expected = self.columns.place(name)?;
        }
        self.last = *expected;
        Ok(self.last)
    }

    pub(super) fn name(&self, column: usize) -> &'c str {
        &self.columns.columns[column].name
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn columns_are_found_in_any_order(rows in prop::collection::vec(prop::collection::vec(0usize..6, 0..9), 0..6)) {
            let names = ["a", "b", "c", "d", "e", "unknown"];
            let columns = toml::from_str("label = 'y'\ndense = ['a', 'b']\nslots = ['c', 'd', 'e']").unwrap();
            let columns = ServingColumns::new(&columns, &BTreeMap::new(), &BTreeSet::new());
            let mut order = ColumnOrder::new(&columns);
            for row in rows {
                order.begin_row();
                for column in row {
                    let found = order.place(names[column]);
                    prop_assert_eq!(&found, &columns.place(names[column]));
                    prop_assert!(found.is_err() || order.name(column) == names[column]);
                }
            }
        }
    }
}
