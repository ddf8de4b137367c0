//! `forebay data stats`: what the scales of dense features need to know about the training rows.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tempfile::NamedTempFile;

use crate::actors::{Fault, commas};
use crate::connectors::staged;
use crate::out;
use crate::pipelines::{Context, DenseStatistics, Job, dense_statistics};

/// Mean, standard deviation, least and greatest value of the dense features of a job, for their `scale`
///
/// Reads the rows at data.train once. Prints the section [columns.statistics] of a job file; --write puts it into the file.
#[derive(Args)]
pub(crate) struct Stats {
    /// The job file.
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// Override a field of the job, for instance data.train=rows/monday; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Write the section into the job file, in place of an older one.
    #[arg(long)]
    write: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "write")]
    json: bool,
}

impl Stats {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let job = Job::load(&self.job, &self.settings)?;
        let statistics = dense_statistics(&job, context)?;
        if self.json {
            return out::print(json!(statistics));
        }
        let section = section(&statistics);
        if !self.write {
            return out::print(section.trim_end());
        }
        self.put_into_file(&section, &statistics)?;
        let values = statistics.values().next().map_or(0, |one| one.values.unwrap_or(0) + one.missing.unwrap_or(0));
        out::print(format_args!(
            "wrote the statistics of {} dense features over {} rows to {}",
            statistics.len(),
            commas(values),
            self.job.display()
        ))
    }

    /// Replaces the section in the file. The file appears whole: it is written under another name first.
    fn put_into_file(&self, section: &str, statistics: &BTreeMap<String, DenseStatistics>) -> Result<(), Fault> {
        let path = self.job.display().to_string();
        let cannot = |what: &str, e: std::io::Error| staged::fault(&path, &format!("cannot {what}"), e);
        let old = std::fs::read_to_string(&self.job).map_err(|e| cannot("read", e))?;
        let new = with_section(&old, section);
        let is_right = Job::from_toml(&new, &[]).is_ok_and(|job| job.columns.statistics.as_ref() == Some(statistics));
        if !is_right {
            return Err(Fault::user(format!(
                "the section [columns.statistics] cannot be put into {path}, perhaps because `columns` or `statistics` stand \
                 in one line there: put it in by hand, as `forebay data stats` prints it without --write"
            )));
        }
        // A link stays a link, and the file keeps its mode.
        let place = self.job.canonicalize().map_err(|e| cannot("find", e))?;
        let written = || {
            let mut file = NamedTempFile::new_in(place.parent().unwrap_or(&place))?;
            file.write_all(new.as_bytes())?;
            file.as_file().set_permissions(place.metadata()?.permissions())?;
            Ok(file)
        };
        let file = written().map_err(|e| cannot("write a new file beside", e))?;
        file.persist(&place).map(drop).map_err(|e| cannot("replace", e.error))
    }
}

const HEADER: &str = "[columns.statistics]";

/// The section of a job file.
fn section(statistics: &BTreeMap<String, DenseStatistics>) -> String {
    let lines = statistics.iter().map(|(column, of)| {
        let value = toml::Value::try_from(of).expect("numbers can be written as TOML");
        let key = toml::Value::String(column.clone()).to_string();
        let bare = column.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') && !column.is_empty();
        format!("{} = {value}\n", if bare { column } else { &key })
    });
    format!("{HEADER}                      # of `forebay data stats`\n{}", lines.collect::<String>())
}

/// The text of a job file with the section in place of an older one, or at its end.
fn with_section(old: &str, section: &str) -> String {
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let is_ours = |line: &str| {
        let header = line.trim_start().split(']').next().unwrap_or_default();
        header == "[columns.statistics" || header.starts_with("[columns.statistics.")
    };
    let (mut kept, mut ours) = (String::new(), false);
    for line in old.lines() {
        if is_header(line) {
            ours = is_ours(line);
        }
        if !ours {
            kept += line;
            kept.push('\n');
        }
    }
    format!("{}\n\n{section}", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_replaces_the_older_one_and_leaves_the_rest_of_the_file() {
        let one = |mean| DenseStatistics { mean, std: 0.25, max: 1e-7, values: Some(3), ..DenseStatistics::default() };
        let all = |mean| BTreeMap::from([("age".to_owned(), one(mean)), ("a \"b\".c".to_owned(), one(mean))]);
        let job = "# mine\nseed = 5\n[columns]\ndense = [\"age\"]   # yes\n\n[columns.statistics]\nage = { mean = 1, std = 1, min = 0, max = 2 }\n\
            [columns.statistics.x]\nmean = 1\nstd = 1\nmin = 0\nmax = 2\n\n[train]\nbatch_rows = 7\n";
        let first = with_section(job, &section(&all(1.5)));
        let second = with_section(&first, &section(&all(-2.5)));
        assert!(second.starts_with("# mine\nseed = 5\n[columns]\ndense = [\"age\"]   # yes\n"), "{second}");
        assert_eq!(second.matches("statistics]").count(), 1, "{second}");
        let job = Job::from_toml(&second, &[]).unwrap();
        assert_eq!((job.columns.statistics, job.train.batch_rows), (Some(all(-2.5)), 7));
        assert_eq!(with_section(&second, &section(&all(-2.5))), second);
    }
}
