//! How many rows a window and a batch have.

use forebay_job::Job;

/// Rows of a window: the rows that are shuffled together, rounded up to whole steps. A step has a batch for each of the
/// `trainers` that take it together. So one process and a cluster cut the same batches.
pub(crate) fn window_rows(job: &Job, trainers: usize) -> usize {
    let step = job.train.batch_rows.saturating_mul(trainers.max(1)).max(1);
    let rows = if job.data.shuffle_rows == 0 { UNSHUFFLED } else { job.data.shuffle_rows };
    rows.checked_next_multiple_of(step).unwrap_or(step)
}

/// Rows of a window without shuffling. Skipped bad rows make the last batch of each window short.
pub(crate) const UNSHUFFLED: usize = 65_536;

/// Rows of a batch in evaluation and prediction. The number does not change the result.
pub(crate) const FORWARD_ROWS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_hold_what_is_shuffled_together_in_whole_batches() {
        let rows = |shuffle_rows, batch_rows, trainers| {
            let mut job = Job::default();
            (job.data.shuffle_rows, job.train.batch_rows) = (shuffle_rows, batch_rows);
            window_rows(&job, trainers)
        };
        assert_eq!(rows(65_536, 2048, 1), 65_536);
        assert_eq!(rows(65_536, 2048, 3), 11 * 3 * 2048);
        assert_eq!(rows(100, 64, 1), 128);
        assert_eq!(rows(0, 64, 1), UNSHUFFLED, "in order: a window all the same");
        assert_eq!(rows(0, 1000, 4), 17 * 4 * 1000);
        assert_eq!(rows(usize::MAX, 64, 1), 64);
    }
}
