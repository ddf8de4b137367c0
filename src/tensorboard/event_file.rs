//! An event file of TensorBoard: records of TensorFlow's TFRecord format, each an [`Event`].

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crc::{CRC_32_ISCSI, Crc, Table};
use prost::Message;

use super::messages::{Event, START, SessionLog, StepSummary, Value, What};

/// CRC-32C, by a table of 1 KiB, for a few hundred bytes a second.
const CRC: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&CRC_32_ISCSI);

/// An event file that grows.
pub(super) struct EventFile(File);

impl EventFile {
    /// A new file in a folder, which is made if it is not there. Several in one folder are one run: TensorBoard reads them in the order of
    /// their names.
    ///
    /// # Errors
    /// The file cannot be written, and is removed.
    pub(super) fn new(folder: &Path) -> io::Result<EventFile> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = folder.join(name(now));
        fs::create_dir_all(folder)?;
        let mut file = EventFile(File::options().append(true).create_new(true).open(&path)?);
        // From version 2 on, TensorBoard looks for `SessionLog` events.
        let written = file.write(0, What::FileVersion("brain.Event:2".into()));
        if written.is_err() {
            let _ = fs::remove_file(&path);
        }
        written.map(|()| file)
    }

    /// An event file over an existing file, which tests use to make writes fail.
    #[cfg(test)]
    pub(super) fn over(file: &Path) -> io::Result<EventFile> {
        File::options().append(true).open(file).map(EventFile)
    }

    /// Says that training continues from this step.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn start(&mut self, step: u64) -> io::Result<()> {
        self.write(step, What::SessionLog(SessionLog { status: START }))
    }

    /// Adds numbers of a step, by name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn scalars(&mut self, step: u64, scalars: Vec<(String, f64)>) -> io::Result<()> {
        let value = scalars.into_iter().map(|(tag, number)| Value { tag, simple_value: Some(number as f32) });
        self.write(step, What::Summary(StepSummary { value: value.collect() }))
    }

    /// Writes a record in one call, so that a reader sees all of it or the beginning of it, which it skips until the rest comes.
    fn write(&mut self, step: u64, what: What) -> io::Result<()> {
        let wall_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.0.write_all(&record(&Event { wall_time, step: step as i64, what: Some(what) }.encode_to_vec()))?;
        match self.0.metadata()?.nlink() {
            0 => Err(io::Error::new(io::ErrorKind::NotFound, "the event file was removed")),
            _ => Ok(()),
        }
    }
}

/// The name of a file that begins at a time since 1970. Names sort by time: in containers, all sessions may have one process number.
fn name(began: Duration) -> String {
    format!("events.out.tfevents.{:010}.{:09}.{}", began.as_secs(), began.subsec_nanos(), std::process::id())
}

/// A TFRecord: the length, its checksum, the data, its checksum.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), data, &masked_crc(data)].concat()
}

/// The checksum of TFRecord files: CRC-32C, rotated and offset, because the CRC of data that contains its own CRC is useless.
fn masked_crc(data: &[u8]) -> [u8; 4] {
    CRC.checksum(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_time() {
        let times = [(1_790_000_000, 7), (1_790_000_000, 20), (1_790_000_000, 100_000_000), (1_790_000_001, 3)];
        let names = times.map(|(seconds, nanoseconds)| name(Duration::new(seconds, nanoseconds)));
        assert!(names.is_sorted(), "{names:?}");
        assert!(names[0].starts_with("events.out.tfevents.1790000000.000000007."), "{names:?}");
    }

    #[test]
    fn a_record_has_the_bytes_that_tensorflow_writes() {
        // By TensorBoard's own `masked_crc32c`.
        let expected = *b"\x07\0\0\0\0\0\0\0\xbb\xd7\x9f\x11forebay\x70\x28\xb7\x84";
        assert_eq!(record(b"forebay"), expected);
    }
}
