//! The report of a training as files: JSON, and a page for people.

mod contents;
mod history;
mod page;
mod sample;
mod trace;

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use crate::Fault;
use crate::connectors::staged;
use crate::pipelines::cluster::ProcessTimeline;
use crate::pipelines::warn_if_it_may_pass;
use crate::whole_file;
use serde_json::Value;

pub(crate) use contents::{add_fields, contents, drained_contents, failed_contents, of_table, running_contents};
pub(crate) use history::History;
pub(crate) use page::live_page;
pub(crate) use sample::Sample;
#[cfg(test)]
pub(crate) use sample::StageTimes;

/// Where the report of a training goes: nowhere, to a file of JSON, or to a folder with `report.json`, `report.html` and
/// `trace.json`.
pub(crate) struct ReportFiles {
    json: Option<PathBuf>,
    html: Option<PathBuf>,
    trace: Option<PathBuf>,
}

impl ReportFiles {
    /// A path that ends with `.json`, or that is a device or a pipe, is a file; any other is a folder. Checks before the training that the
    /// folder can be made and all files be written; the folder is made with the first file. `goes_on`: the run may have trained before, so
    /// a full disk is only a warning.
    ///
    /// # Errors
    /// One of the files cannot be written; or the path is a file with another ending that holds something other than a report. The disk is
    /// full, unless `goes_on`.
    pub(crate) fn new(path: Option<PathBuf>, goes_on: bool) -> Result<Self, Fault> {
        let Some(path) = path else { return Ok(Self { json: None, html: None, trace: None }) };
        check_local(&path, "--report")?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        if !is_json && path.is_file() && !may_be_replaced(&path) {
            return Err(Fault::user(format!(
                "cannot write the report to {}: a file of another kind is there; name a folder, or a file whose name ends with .json",
                path.display()
            )));
        }
        let is_file = !path.is_dir() && (path.exists() || is_json);
        let folder: &Path = if is_file { path.parent().unwrap_or(Path::new("")) } else { &path };
        let files = if is_file {
            Self { json: Some(path.clone()), html: None, trace: None }
        } else {
            let file = |name| Some(path.join(name));
            Self { json: file("report.json"), html: file("report.html"), trace: file("trace.json") }
        };
        let room = || match probe_room(folder) {
            // The files exist, or the path is no regular file, such as a pipe.
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(()),
            room => room.map_err(|e| cannot_write(&path, e)),
        };
        let all = || [&files.json, &files.html, &files.trace].into_iter().flatten().try_for_each(|file| probe(file));
        let probed = staged::probe_folder(folder, |e| cannot_write(&path, e), || all().and_then(|()| room()));
        warn_if_it_may_pass(probed, goes_on, "the report could not be written")?;
        Ok(files)
    }

    /// Writes the timelines of the stages of each process.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write_trace(&self, processes: &[ProcessTimeline]) -> Result<(), Fault> {
        let Some(file) = &self.trace else { return Ok(()) };
        write(file, trace::trace(processes).to_string().as_bytes())
    }

    /// Writes the report.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, report: &Value) -> Result<(), Fault> {
        if let Some(file) = &self.json {
            write(file, format!("{report:#}\n").as_bytes())?;
        }
        if let Some(file) = &self.html {
            write(file, page::report_page(report).as_bytes())?;
        }
        Ok(())
    }

    /// Whether there is a trace.
    pub(crate) fn has_trace(&self) -> bool {
        self.trace.is_some()
    }

    /// Whether the report goes anywhere.
    pub(crate) fn is_some(&self) -> bool {
        self.json.is_some()
    }
}

/// Fails if the path that `option` names is a URL: its files are written to the local disk, where a folder would be called `hdfs:`.
///
/// # Errors
/// A user fault that names the option.
pub(crate) fn check_local(path: &Path, option: &str) -> Result<(), Fault> {
    match path.to_string_lossy().contains("://") {
        true => Err(Fault::user(format!("{option} is {}, expected a local path without `://`", path.display()))),
        false => Ok(()),
    }
}

/// Bytes that a disk must have room for before a run begins.
const ROOM: usize = 4096;

/// Writes a file without a name to a folder: a full disk still makes files, but has no room for their bytes.
///
/// # Errors
/// The error of the file system.
pub(crate) fn probe_room(folder: &Path) -> io::Result<()> {
    // An empty path is the working directory.
    tempfile::tempfile_in(Path::new(".").join(folder))?.write_all(&[0; ROOM])
}

/// Writes a file. Makes its folder, if it is not there.
fn write(file: &Path, bytes: &[u8]) -> Result<(), Fault> {
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    folder.and_then(|()| whole_file::write(file, bytes)).map_err(|e| cannot_write(file, e))
}

fn cannot_write(path: &Path, e: io::Error) -> Fault {
    staged::fault(path.display(), "cannot write the report to", e)
}

/// Whether the file is empty, as one that was made for the report, or holds an earlier report.
fn may_be_replaced(file: &Path) -> bool {
    let is_report = |text: &[u8]| serde_json::from_slice::<Value>(text).is_ok_and(|report| report["stages"].is_array());
    fs::read(file).is_ok_and(|text| text.is_empty() || is_report(&text))
}

/// Fails if `file` cannot be written. Leaves the file as it was.
fn probe(file: &Path) -> Result<(), Fault> {
    let tried = match OpenOptions::new().write(true).create_new(true).open(file) {
        Ok(_) => fs::remove_file(file),
        // Opening a pipe would wait for its reader.
        Err(e) if e.kind() == ErrorKind::AlreadyExists && file.is_file() => {
            OpenOptions::new().append(true).open(file).map(drop)
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists && !file.is_dir() => Ok(()),
        Err(e) => Err(e),
    };
    tried.map_err(|e| cannot_write(file, e))
}
