//! `forebay data stats`: computes the statistics for the scales of dense features, and the quantiles of slots, from the training rows.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::actors::{Fault, counted};
use crate::connectors::staged;
use crate::out;
use crate::pipelines::{ColumnStatistics, Context, Job, column_statistics};
use crate::whole_file;

/// Compute the statistics of a job's dense features, for their `scale`, and the quantiles of its slots
///
/// Reads the rows at data.train once. Prints the sections [columns.statistics] and [columns.quantiles] of a job file; --write puts them
/// into the file.
#[derive(Args)]
pub(crate) struct Stats {
    /// The job file.
    #[arg(value_name = "JOB.toml")]
    job: PathBuf,
    /// Override a field of the job, for instance data.train=rows/monday; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Write the sections into the job file, in place of older ones.
    #[arg(long)]
    write: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "write")]
    json: bool,
}

impl Stats {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let job = Job::load(&self.job, &self.settings)?;
        let statistics = column_statistics(&job, context)?;
        if self.json {
            return out::print(json!({ "statistics": statistics.dense, "quantiles": statistics.quantiles }));
        }
        let section = section(&statistics);
        if !self.write {
            return out::print(section.trim_end());
        }
        self.put_into_file(&section, &statistics)?;
        let quantiles = match statistics.quantiles.len() {
            0 => String::new(),
            slots => format!(" and the quantiles of {}", counted(slots, "slot")),
        };
        out::print_or_drop(format_args!(
            "wrote the statistics of {}{quantiles} over {} to {}",
            counted(statistics.dense.len(), "dense feature"),
            counted(statistics.rows, "row"),
            self.job.display()
        ));
        Ok(())
    }

    /// Replaces the section in the file. The file appears whole: it is written under another name first.
    fn put_into_file(&self, section: &str, statistics: &ColumnStatistics) -> Result<(), Fault> {
        let path = self.job.display().to_string();
        let cannot = |what: &str, e: std::io::Error| staged::fault(&path, &format!("cannot {what}"), e);
        let old = std::fs::read_to_string(&self.job).map_err(|e| cannot("read", e))?;
        let new = with_section(&old, section);
        let is_right = Job::from_toml(&new, &[]).is_ok_and(|job| {
            job.columns.statistics.unwrap_or_default() == statistics.dense
                && job.columns.quantiles.unwrap_or_default() == statistics.quantiles
        });
        if !is_right {
            return Err(Fault::user(format!(
                "cannot write the section [columns.statistics] into {path}, perhaps because `columns`, `statistics` or \
                 `quantiles` is an inline table there: insert it by hand, as `forebay data stats` prints it without \
                 --write"
            )));
        }
        whole_file::write(&self.job, new.as_bytes()).map_err(|e| cannot("replace", e))
    }
}

/// The sections of a job file.
fn section(statistics: &ColumnStatistics) -> String {
    let parts = [part("statistics", &statistics.dense), part("quantiles", &statistics.quantiles)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// A section; `None` if it would be empty.
fn part<T: Serialize>(name: &str, columns: &BTreeMap<String, T>) -> Option<String> {
    let lines = columns.iter().map(|(column, of)| {
        let value = toml::Value::try_from(of).expect("numbers can be written as TOML");
        let key = toml::Value::String(column.clone()).to_string();
        let bare = column.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') && !column.is_empty();
        format!("{} = {value}\n", if bare { column } else { &key })
    });
    let header = format!("[columns.{name}]");
    (!columns.is_empty())
        .then(|| format!("{header}                      # of `forebay data stats`\n{}", lines.collect::<String>()))
}

/// The text of a job file with the section in place of an older one, or at its end.
fn with_section(old: &str, section: &str) -> String {
    let is_header = |line: &str| line.trim_start().starts_with('[');
    let is_ours = |line: &str| {
        let header = line.trim_start().split(']').next().unwrap_or_default();
        ["[columns.statistics", "[columns.quantiles"]
            .iter()
            .any(|ours| header.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
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
    let new = format!("{}\n\n{section}", kept.trim_end());
    if has_crlf(old) { new.replace('\n', "\r\n") } else { new }
}

/// Whether the first line of a file ends as in Windows.
fn has_crlf(text: &str) -> bool {
    text.split_once('\n').is_some_and(|(first, _)| first.ends_with('\r'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipelines::DenseStatistics;

    /// A bug: all lines of a file of Windows got other ends.
    #[test]
    fn the_line_ends_of_the_file_stay() {
        let section = "[columns.statistics]\nage = { mean = 1.0, std = 1.0, min = 0.0, max = 2.0 }\n";
        for job in ["seed = 5\r\n[train]\r\nbatch_rows = 7\r\n", "seed = 5\r\n"] {
            let new = with_section(job, section);
            assert_eq!(new.matches("\r\n").count(), new.matches('\n').count(), "{new:?}");
            assert!(new.starts_with(job.trim_end()) && !new.contains("\r\r"), "{new:?}");
            assert_eq!(with_section(&new, section), new);
            assert_eq!(Job::from_toml(&new, &[]).unwrap().seed, 5);
        }
        assert!(!with_section("seed = 5\n", section).contains('\r'));
    }

    #[test]
    fn a_section_replaces_the_older_one_and_leaves_the_rest_of_the_file() {
        let one = |mean| DenseStatistics { mean, std: 0.25, max: 1e-7, values: Some(3), ..DenseStatistics::default() };
        let all = |mean| ColumnStatistics {
            dense: BTreeMap::from([("age".to_owned(), one(mean)), ("a \"b\".c".to_owned(), one(mean))]),
            quantiles: BTreeMap::from([("pri ce".to_owned(), vec![mean, 9.0])]),
            rows: 3,
        };
        let job = "# mine\nseed = 5\n[columns]\ndense = [\"age\"]   # yes\n\n[columns.statistics]\nage = { mean = 1, std = 1, min = 0, max = 2 }\n\
            [columns.statistics.x]\nmean = 1\nstd = 1\nmin = 0\nmax = 2\n\n[train]\nbatch_rows = 7\n";
        let first = with_section(job, &section(&all(1.5)));
        let second = with_section(&first, &section(&all(-2.5)));
        assert!(second.starts_with("# mine\nseed = 5\n[columns]\ndense = [\"age\"]   # yes\n"), "{second}");
        assert_eq!((second.matches("statistics]").count(), second.matches("quantiles]").count()), (1, 1), "{second}");
        let job = Job::from_toml(&second, &[]).unwrap();
        assert_eq!((job.columns.statistics, job.train.batch_rows), (Some(all(-2.5).dense), 7));
        assert_eq!(job.columns.quantiles, Some(all(-2.5).quantiles));
        assert_eq!(with_section(&second, &section(&all(-2.5))), second);
    }
}
