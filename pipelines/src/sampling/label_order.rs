//! A warning about rows that are sorted by their label: a model that is trained on them in this order learns little.

use forebay_actors::commas;
use forebay_job::Job;

use super::initial_bias::LabelCounts;

/// Rows are sorted if the shares of positive labels in two parts of the data differ by at least this. Shares that drift with time, or
/// differ between users, do not.
const DIFFERENCE: f64 = 0.5;

/// A part with fewer rows tells no share.
const ENOUGH: u64 = 500;

/// Warns if the rows are sorted by a label. `parts`: for each part of the data its labels. `rows`: rows of an epoch, if they are known.
pub(crate) fn check(job: &Job, parts: &[Vec<LabelCounts>], rows: Option<u64>) {
    if let Some(text) = said(job, parts, rows) {
        tracing::warn!("{text}");
    }
}

fn said(job: &Job, parts: &[Vec<LabelCounts>], rows: Option<u64>) -> Option<String> {
    let shuffled = job.data.shuffle_rows;
    if rows.is_some_and(|rows| rows <= shuffled as u64) {
        return None;
    }
    let (label, [least, most]) = job.columns.label.iter().enumerate().find_map(|(label, column)| {
        let shares = parts.iter().filter_map(|part| part[label].share_of_positive_rows(ENOUGH));
        let [least, most] = shares.fold([1.0, 0.0], |[least, most], share| [share.min(least), share.max(most)]);
        (most - least >= DIFFERENCE).then_some((&column.column, [least, most]))
    })?;
    Some(format!(
        "the rows at data.train seem to be sorted by `{label}`: {:.0}% are positive in one part, and {:.0}% in another. Training shuffles \
         only {} rows at a time (data.shuffle_rows), so the model would learn little: shuffle the rows, or raise data.shuffle_rows to the \
         rows of the data",
        100.0 * least,
        100.0 * most,
        commas(shuffled as u64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_whose_labels_differ_much_are_sorted() {
        let warns = |shares: &[(usize, usize)], rows: Option<u64>, settings: &[&str]| {
            let job = Job::with_settings("", settings).unwrap();
            let part = |&(positive, negative): &(usize, usize)| {
                let mut counts = LabelCounts::default();
                counts.add(&[vec![1.0; positive], vec![0.0; negative]].concat(), &[]);
                vec![counts]
            };
            said(&job, &shares.iter().map(part).collect::<Vec<_>>(), rows)
        };
        let sorted = [(8000, 0), (0, 8000), (100, 7900)];
        let text = warns(&sorted, None, &[]).unwrap();
        assert!(text.contains("0% are positive in one part, and 100% in another") && text.contains("65,536"), "{text}");
        assert!(warns(&sorted, Some(100_000), &[]).is_some());
        assert!(warns(&sorted, Some(65_536), &[]).is_none(), "all rows are shuffled together");
        assert!(warns(&sorted, Some(100_000), &["data.shuffle_rows=100000"]).is_none());
        assert!(warns(&[(200, 7800), (2000, 6000)], None, &[]).is_none(), "a share that drifts");
        assert!(warns(&[(499, 0), (0, 8000)], None, &[]).is_none(), "too few rows");
        assert!(warns(&[], None, &[]).is_none());
    }
}
