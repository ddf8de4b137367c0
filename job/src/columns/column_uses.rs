//! How the job uses each column, looked up by name: a job may have tens of thousands of columns.

use std::collections::HashMap;

use forebay_connectors::{FileColumn, Integers};

use super::{Columns, SlotKind};

/// How the job uses its columns.
pub(super) struct ColumnUses<'a>(HashMap<&'a str, Use<'a>>);

/// How the job uses one column.
#[derive(Clone, Copy, Default)]
struct Use<'a> {
    optional: bool,
    /// In the training of a model it had lists, or had none.
    had_lists: bool,
    had_none: bool,
    /// An option of a feature says that it holds lists.
    has_lists: bool,
    /// The kind of its first slot.
    kind: Option<SlotKind>,
    /// It has slots of several kinds, or is more than a slot and a column for custom stages.
    mixed: bool,
    /// It is a label or the weight of rows.
    of_rows: bool,
    /// It is a feature, or a part of one.
    of_feature: bool,
    /// It is a time with a unit, and nothing else.
    only_time: bool,
    /// The column of the weights of its values, or of the values that it weighs.
    paired: Option<&'a str>,
}

impl Columns {
    /// How the job uses each column.
    pub(super) fn uses(&self) -> ColumnUses<'_> {
        let mut uses = ColumnUses(HashMap::new());
        self.optional.iter().for_each(|name| uses.column(name).optional = true);
        self.lists.iter().for_each(|name| uses.column(name).had_lists = true);
        self.single.iter().for_each(|name| uses.column(name).had_none = true);
        self.only_times().into_iter().for_each(|name| uses.column(name).only_time = true);
        let labels = self.label.iter().map(|label| &label.column).chain(&self.weight);
        let at = self.dense.iter().filter_map(|dense| dense.at_column());
        labels.for_each(|name| (uses.column(name).mixed, uses.column(name).of_rows) = (true, true));
        at.for_each(|name| (uses.column(name).mixed, uses.column(name).of_feature) = (true, true));
        for dense in &self.dense {
            let of_column = uses.column(&dense.column);
            (of_column.mixed, of_column.of_feature) = (true, true);
            of_column.has_lists |= dense.length.is_some();
        }
        for slot in &self.slots {
            let of_column = uses.column(&slot.column);
            of_column.of_feature = true;
            of_column.mixed |= *of_column.kind.get_or_insert(slot.kind) != slot.kind;
            of_column.has_lists |= slot.is_of_lists() || slot.pooling.is_some();
            let Some(weights) = &slot.weights else { continue };
            of_column.has_lists = true;
            of_column.paired.get_or_insert(weights);
            let of_weights = uses.column(weights);
            (of_weights.mixed, of_weights.of_feature, of_weights.has_lists) = (true, true, true);
            of_weights.paired.get_or_insert(&slot.column);
        }
        uses
    }
}

impl<'a> ColumnUses<'a> {
    fn column(&mut self, name: &'a str) -> &mut Use<'a> {
        self.0.entry(name).or_default()
    }

    /// The column as the reader of a file is told to read it.
    pub(super) fn as_read(&self, column: FileColumn) -> FileColumn {
        let of = self.0.get(column.name.as_str()).copied().unwrap_or_default();
        let only = |kind| !of.mixed && of.kind == Some(kind);
        let integers = match of.only_time {
            true => Integers::RoundedDown,
            false if only(SlotKind::Int) => Integers::Wrapping,
            false => Integers::Signed,
        };
        let list = of.had_lists || of.has_lists && !of.had_none;
        let paired = of.paired.map(str::to_owned);
        let column = column.optional(of.optional).folder_text(only(SlotKind::String));
        column.integers(integers).list(list).single(of.of_rows && !of.of_feature).paired_column(paired)
    }
}
