//! `forebay data inspect`: what is in rows.

use std::collections::BTreeSet;

use clap::Args;

use super::input_form::{InputForm, input, no_common_column, row_number, with_options, without_header};
use crate::actors::FaultKind;
use crate::connectors::convert::block_on;
use crate::connectors::inspect::{InspectOptions, inspect};
use crate::connectors::{Format as FileFormat, Predicate};
use crate::logs::Logs;
use crate::{Fault, out};

/// Print the schema, rows and row groups, and for each column the missing rate, distinct values, range and histogram
///
/// Reads all rows once.
#[derive(Args)]
pub(crate) struct Inspect {
    /// A file, a folder or a glob of Parquet, Arrow, CSV, JSON lines or Criteo text: a path or a URL (hdfs://, s3://, file://).
    path: String,
    #[command(flatten)]
    form: InputForm,
    /// Read only the partition folders that this selects, for instance "day >= '2026-11-20'".
    #[arg(long = "where", value_name = "PREDICATE")]
    filter: Option<Predicate>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(super) fn run(self, logs: &Logs) -> Result<(), Fault> {
        let input = block_on(input(self.path, self.filter.as_ref()).listed())?;
        let format = self.form.format_of(&input, None)?;
        let options = InspectOptions { format: Some(format), csv: self.form.csv() };
        let with_options = |fault: Fault| match fault.kind {
            FaultKind::MissingColumn => no_common_column(fault),
            _ if format == FileFormat::Criteo => with_options(fault),
            _ => fault,
        };
        let found = block_on(inspect(input.clone(), options)).map_err(with_options)?;
        let files = block_on(input.list())?;
        let folders: BTreeSet<&str> =
            files.iter().flat_map(|file| file.partitions.iter()).map(|(name, _)| name).collect();
        let named = found.columns.iter().map(|column| (column.name.as_str(), column.kind == "number"));
        let named: Vec<(&str, bool)> = named.filter(|(name, _)| !folders.contains(name)).collect();
        let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        if let Some(wrong) = self.form.one_column(&input, &names).filter(|_| found.format == "csv") {
            tracing::warn!("{wrong}");
        }
        if let Some(number) = row_number(&named).filter(|_| found.format == "csv") {
            tracing::warn!(
                "{}; this command took that row for the names of the columns",
                without_header(&input, number, self.form.csv().delimiter)
            );
        }
        if self.json || logs.is_json() { out::print(serde_json::json!(found)) } else { out::print(found) }
    }
}
