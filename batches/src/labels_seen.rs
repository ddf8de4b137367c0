//! The labels of a run, and warnings about labels that teach nothing: all are the same, or a value that the job calls positive never came.

use std::sync::{Arc, Mutex, MutexGuard};

use forebay_actors::commas;
use forebay_job::{LabelColumn, Labels, Positive, PositiveRule};

/// The labels of one run so far. Clones share them.
#[derive(Clone, Default)]
pub struct LabelsSeen(Arc<Mutex<Vec<Seen>>>);

/// The values of one label so far.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Rows that have it, and the least and the greatest value.
    rows: u64,
    range: Option<(f32, f32)>,
    /// Which of the values that `positive` lists occurred: a bit for each of the first 64.
    positives: u64,
}

impl LabelsSeen {
    fn of(&self, label: usize) -> MutexGuard<'_, Vec<Seen>> {
        let mut all = self.0.lock().expect("no holder of this lock panics");
        if all.len() <= label {
            all.resize(label + 1, Seen::default());
        }
        all
    }

    /// Adds the values of a label; NaN is none.
    pub fn add(&self, label: usize, values: &[f32]) {
        let there = values.iter().copied().filter(|value| !value.is_nan());
        let (mut rows, mut range) = (0, None);
        for value in there {
            let (least, most) = range.unwrap_or((value, value));
            (rows, range) = (rows + 1, Some((value.min(least), value.max(most))));
        }
        let mut all = self.of(label);
        let seen = &mut all[label];
        seen.rows += rows;
        seen.range = match (seen.range, range) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
    }

    /// Adds values of `positive` that came.
    pub(crate) fn add_positives(&self, label: usize, positives: u64) {
        if positives != 0 {
            self.of(label)[label].positives |= positives;
        }
    }

    /// Logs what is wrong with the labels, of the job's `columns`.
    pub fn warn(&self, columns: &Labels) {
        self.wrong(columns).iter().for_each(|wrong| tracing::warn!("columns.label: {wrong}"));
    }

    /// What is wrong with the labels, of the job's `columns`.
    pub fn wrong(&self, columns: &Labels) -> Vec<String> {
        let all = self.0.lock().expect("no holder of this lock panics").clone();
        let rows: u64 = all.iter().map(|seen| seen.rows).sum();
        let of_label = |(column, seen): (&LabelColumn, &Seen)| match seen.range {
            None if rows > 0 => {
                Some(format!("no row has a value in {}, so the model learned nothing of it", described(column)))
            }
            Some((least, most)) if least == most => Some(format!(
                "{} label {least} ({}), so the model learned nothing that tells rows apart",
                all_rows_have(seen.rows),
                described(column)
            )),
            _ => never(column, seen.positives).map(|never| {
                let (rows, column) = (commas(seen.rows), &column.column);
                format!("no row of {rows} has {never} in column `{column}`, which columns.label calls positive")
            }),
        };
        columns.iter().zip(&all).filter_map(of_label).collect()
    }
}

/// Logs that all labels of an evaluation are the same. `measured`: the rows that have each label, and its mean. `weighted`: rows have
/// weights, and rows of weight 0 do not count.
pub fn warn_of_equal_labels(columns: &Labels, weighted: bool, measured: impl IntoIterator<Item = (u64, f64)>) {
    for (column, (rows, label)) in columns.iter().zip(measured) {
        if rows > 0 && (label == 0.0 || label == 1.0) {
            let rows_have = match weighted {
                true => "all rows with a weight above 0 have".to_owned(),
                false => all_rows_have(rows),
            };
            let column = described(column);
            tracing::warn!("columns.label: {rows_have} label {label} ({column}), so there is no AUC");
        }
    }
}

fn all_rows_have(rows: u64) -> String {
    match rows {
        1 => "the only row has".to_owned(),
        _ => format!("all {} rows have", commas(rows)),
    }
}

/// The column, and which of its values are positive.
fn described(label: &LabelColumn) -> String {
    let positive = label.positive.as_ref().map_or_else(String::new, |positive| format!(", positive = {positive}"));
    format!("column `{}`{positive}", label.column)
}

/// The positive values that never came, if some did.
fn never(label: &LabelColumn, positives: u64) -> Option<String> {
    let Some(Positive(PositiveRule::OneOf(values))) = &label.positive else { return None };
    let never = values.iter().take(64).enumerate().filter(|(bit, _)| positives >> bit & 1 == 0);
    let never: Vec<String> = never.map(|(_, value)| format!("`{value}`")).collect();
    // If no positive value occurred, the rows were parsed in other processes, or all labels are 0.
    (positives != 0 && !never.is_empty()).then(|| never.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_never_came_are_listed_if_others_came() {
        let mut label = LabelColumn::from("event");
        assert_eq!(never(&label, 1), None);
        label.positive = Some(Positive(PositiveRule::OneOf(["a", "b", "c"].map(str::to_owned).into())));
        assert_eq!(never(&label, 0), None);
        assert_eq!(never(&label, 0b111), None);
        assert_eq!(never(&label, 0b010).as_deref(), Some("`a`, `c`"));
    }

    #[test]
    fn a_label_that_rows_lack_is_not_counted() {
        let seen = LabelsSeen::default();
        seen.add(1, &[f32::NAN, 1.0, 1.0]);
        seen.add(1, &[f32::NAN]);
        let all = seen.of(1).clone();
        assert_eq!((all[0].rows, all[1].rows, all[1].range), (0, 2, Some((1.0, 1.0))));
        seen.add(1, &[0.5]);
        assert_eq!(seen.of(1)[1].range, Some((0.5, 1.0)));
    }
}
