//! The source that a job asks for, handed to whoever can take any source.
//!
//! Comes in: a job and a path. Goes out: a source's constructor. Blocks while the files are listed, if the job does not
//! say what they are.

use std::sync::Arc;

use forebay_actors::{Fault, Source};
use forebay_connectors::convert::block_on;
use forebay_connectors::{CriteoSource, Input, Leases, ParquetSource, ReadOptions, Rows};

use crate::job::{Format, Job};

/// Something that can be done with a source of any type.
pub(crate) trait Visit {
    /// What comes of it.
    type Out;
    /// Does it.
    fn visit<S: Source<Out = Rows>>(self, make: impl FnOnce() -> S + Send + 'static) -> Self::Out;
}

/// Finds out what `path` holds (a file, a folder, a glob, a URL) and visits its source, which reads it in order, as one
/// window an epoch.
pub(crate) fn open<V: Visit>(job: &Job, path: &str, visit: V) -> Result<V::Out, Fault> {
    read(job, path, 0, None, visit)
}

/// The same for training rows: cut into windows (see [`window_rows`]), all of them or those that `leases` gives.
pub(crate) fn open_windows<V: Visit>(
    job: &Job,
    path: &str,
    trainers: usize,
    leases: Option<Arc<dyn Leases>>,
    visit: V,
) -> Result<V::Out, Fault> {
    read(job, path, window_rows(job, trainers), leases, visit)
}

/// Rows of a window: what is shuffled together, in whole batches for each of so
/// many trainers in step with each other (1 otherwise), so that one process and many cut the same batches.
pub(crate) fn window_rows(job: &Job, trainers: usize) -> usize {
    let step = job.train.batch_rows.saturating_mul(trainers.max(1)).max(1);
    let rows = if job.data.shuffle_rows == 0 { UNSHUFFLED } else { job.data.shuffle_rows };
    rows.checked_next_multiple_of(step).unwrap_or(step)
}

/// Rows of a window in which nothing is shuffled: with bad rows left out, only the last batch of a window is short.
const UNSHUFFLED: usize = 65_536;

fn read<V: Visit>(
    job: &Job,
    path: &str,
    window_rows: usize,
    leases: Option<Arc<dyn Leases>>,
    visit: V,
) -> Result<V::Out, Fault> {
    let options = ReadOptions {
        batch_rows: job.data.read_rows,
        epochs: job.data.epochs,
        shuffle: job.data.shuffle,
        seed: job.seed,
        window_rows,
        read_ahead_bytes: job.data.read_ahead.0,
        decode_ahead_bytes: job.data.decode_ahead.0,
        decode_threads: job.data.decode_threads,
    };
    let mut input = Input::from(path);
    if let Some(filter) = &job.data.filter {
        input = input.filtered(filter);
    }
    let format = match job.data.format {
        Some(format) => format,
        None => Format::of(&first_file(&input)?),
    };
    Ok(match format {
        Format::Parquet => {
            let columns = job.columns.names();
            visit.visit(move || {
                let source = ParquetSource::new(input, options).columns(columns);
                if let Some(leases) = leases { source.leasing(leases) } else { source }
            })
        }
        Format::Criteo => {
            let on_bad_row = job.data.on_bad_row.clone();
            visit.visit(move || {
                let source = CriteoSource::new(input, options).on_bad_row(on_bad_row);
                if let Some(leases) = leases { source.leasing(leases) } else { source }
            })
        }
    })
}

/// The name of the first file.
fn first_file(input: &Input) -> Result<String, Fault> {
    // A thread of its own, since the caller may stand in a runtime, which another one cannot be started in.
    let files = std::thread::scope(|scope| scope.spawn(|| block_on(input.list())).join())
        .map_err(|_| Fault::internal("listing files panicked"))??;
    Ok(files.first().map(|file| file.name.clone()).unwrap_or_default())
}

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
