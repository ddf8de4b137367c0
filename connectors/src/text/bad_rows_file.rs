//! A local file that bad rows are appended to. A run goes on when the file cannot be written, because a lost log must not lose a training:
//! the run counts the rows that the file lacks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use forebay_actors::{Domain, Fault};

use crate::staged;

/// A file in the folder of [`OnBadRow::WriteTo`](super::OnBadRow::WriteTo). All writes block.
pub struct BadRowsFile {
    path: PathBuf,
    /// `None` after a fault.
    file: Option<File>,
    /// Whether the file ends within a row, because a process was killed.
    is_torn: bool,
}

impl BadRowsFile {
    /// Makes the folder, and opens the file `name` in it to append.
    ///
    /// # Errors
    /// A user fault if the file cannot be made there; an external fault of the disk.
    pub fn open(folder: &Path, name: &str) -> Result<Self, Fault> {
        let path = folder.join(name);
        let opened = fs::create_dir_all(folder).and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
        let file = opened.map_err(|e| cannot_write(&path, e))?;
        Ok(Self { is_torn: is_torn(&path), file: Some(file), path })
    }

    /// As [`open`](Self::open), in a run that has begun: a fault of the disk, such as one that is full, loses the rows of this file only.
    ///
    /// # Errors
    /// A user fault if the file cannot be made there.
    pub fn open_late(folder: &Path, name: &str) -> Result<Self, Fault> {
        Self::open(folder, name).or_else(|fault| match fault.domain {
            Domain::User => Err(fault),
            _ => {
                warn(&fault);
                Ok(Self { path: folder.join(name), file: None, is_torn: false })
            }
        })
    }

    /// Appends rows, each with its line end. Returns the number of rows that are not in the file. If a write fails, this method logs a
    /// warning and removes the incomplete row from the end of the file; later calls write nothing.
    pub fn append(&mut self, rows: &[Vec<u8>]) -> u64 {
        let Some(file) = &mut self.file else { return rows.len() as u64 };
        let mut text = if std::mem::take(&mut self.is_torn) { vec![b'\n'] } else { Vec::new() };
        let ends: Vec<usize> = rows
            .iter()
            .map(|row| {
                text.extend_from_slice(row);
                text.len()
            })
            .collect();
        let (written, failed) = write(file, &text);
        let Some(e) = failed else { return 0 };
        let whole = ends.partition_point(|end| *end <= written);
        cut(file, written - whole.checked_sub(1).map_or(0, |last| ends[last]));
        self.file = None;
        warn(&cannot_write(&self.path, e));
        (rows.len() - whole) as u64
    }
}

/// Removes the last bytes that were written to a file, if no other process has appended to it since. If it fails, the next run begins a
/// new line after them.
fn cut(file: &mut File, bytes: usize) {
    if bytes == 0 {
        return;
    }
    if let (Ok(end), Ok(there)) = (file.stream_position(), file.metadata())
        && there.len() == end
    {
        let _ = file.set_len(end.saturating_sub(bytes as u64));
    }
}

/// Writes all bytes, or as many as it can. Returns how many, and why there are not more.
fn write(to: &mut impl Write, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match to.write(&bytes[written..]) {
            Ok(0) => return (written, Some(ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return (written, Some(e)),
        }
    }
    (written, None)
}

/// Whether a file ends within a line. One that cannot be read does not count as such.
fn is_torn(path: &Path) -> bool {
    let last = || {
        let (mut file, mut last) = (File::open(path)?, [b'\n']);
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        io::Result::Ok(last != [b'\n'])
    };
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0) && last().unwrap_or(false)
}

fn cannot_write(path: &Path, e: io::Error) -> Fault {
    staged::fault(path.display(), "cannot write bad rows to", e)
}

fn warn(fault: &Fault) {
    tracing::warn!(
        "{fault}; the run goes on without this file, and the ledger at its end counts the rows that are missing in it"
    );
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn rows(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    /// Has room for so many bytes.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.0);
            self.0 -= fits;
            if fits == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(fits) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_has_taken_is_known() {
        assert!(matches!(write(&mut Disk(7), b"a row\n"), (6, None)));
        let (written, failed) = write(&mut Disk(4), b"a row\n");
        assert_eq!((written, failed.unwrap().kind()), (4, ErrorKind::StorageFull));
    }

    /// A bug: a disk that became full under this file ended the training.
    #[test]
    fn rows_that_a_full_disk_does_not_take_are_counted_and_those_of_later_batches_too() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/dev/full", dir.path().join("rows")).unwrap();
        let mut file = BadRowsFile::open(dir.path(), "rows").unwrap();
        assert_eq!(file.append(&rows(&["one\n", "two\n"])), 2);
        assert_eq!(file.append(&rows(&["three\n"])), 1);
        assert_eq!(file.append(&[]), 0);
    }

    /// A bug: the file ended within a row.
    #[test]
    fn what_was_written_of_a_row_is_cut_off_unless_another_process_has_appended_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        fs::write(&path, "one\n").unwrap();
        let open = || OpenOptions::new().append(true).open(&path).unwrap();
        let (mut file, mut other) = (open(), open());
        let mut cut_after_writing = |text: &str, other_writes: &str| {
            file.write_all(text.as_bytes()).unwrap();
            other.write_all(other_writes.as_bytes()).unwrap();
            cut(&mut file, 2);
            fs::read_to_string(&path).unwrap()
        };
        assert_eq!(cut_after_writing("tw", ""), "one\n");
        assert_eq!(cut_after_writing("two\nth", ""), "one\ntwo\n");
        assert_eq!(cut_after_writing("th", "four\n"), "one\ntwo\nthfour\n");
    }

    #[test]
    fn a_row_after_a_torn_one_has_its_own_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/rows");
        let append = |text: &str| {
            let mut file = BadRowsFile::open(path.parent().unwrap(), "rows").unwrap();
            assert_eq!(file.append(&rows(&[text])), 0);
            fs::read_to_string(&path).unwrap()
        };
        assert_eq!(append("one\n"), "one\n");
        assert_eq!(append("tw"), "one\ntw");
        assert_eq!(append("three\n"), "one\ntw\nthree\n");
    }

    #[test]
    fn a_file_that_cannot_be_made_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("rows")).unwrap();
        let opened = [BadRowsFile::open(dir.path(), "rows"), BadRowsFile::open_late(dir.path(), "rows")];
        for fault in opened.map(|opened| opened.err().unwrap()) {
            assert!(fault.domain == Domain::User && fault.to_string().contains("cannot write bad rows to"), "{fault}");
        }
    }
}
