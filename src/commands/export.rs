//! `forebay export`: a model for other runtimes, and deltas between two versions.

use crate::actors::{commas, counted};
use crate::connectors::staged::{Folder, StagedFolder};
use crate::pipelines::{Context, Delta, ExportParts};
use crate::ps::Storage;
use crate::{Fault, Model};
use clap::{Args, ValueEnum};

use super::out_folder;
use crate::logs::Logs;
use crate::scoring_progress::Doing;
use crate::stop::{NOTHING_IS_WRITTEN, Stop};
use crate::{exit, out};

/// Write a model for other runtimes: forebay export --model FOLDER --to FOLDER
///
/// Writes the dense part as ONNX (dense.onnx), and the rows of the table as Parquet and as numpy arrays, sorted by key. See docs/export.md
/// for the inputs of the dense part, and docs/model-folder.md for the keys of values.
///
/// With --delta-from OLD it writes a delta instead, which turns the older model into this one: changed rows, removed keys and the dense
/// parameters. `forebay serve --deltas` applies a delta without a pause; --apply merges it into a model folder. With --values f16 or int8
/// the delta takes less room, and the model that it gives approximates the new one. See docs/serve.md.
///
/// Ctrl-C or SIGTERM stops without writing the folder; the exit code is 5.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay export --model rows/model --to rows/export
  forebay export --model hdfs://nameservice/models/ctr --to export --tables-only
  forebay export --model rows/tuesday --delta-from rows/monday --to rows/deltas/tuesday
  forebay export --model rows/tuesday --delta-from rows/monday --values int8 --to rows/deltas/tuesday
  forebay export --model rows/monday --apply rows/deltas/tuesday --to rows/tuesday-merged")]
pub(crate) struct Export {
    /// The model folder, or a folder of checkpoints for the newest one: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// The folder to write, a path or a URL; it appears when it is complete.
    #[arg(long, value_name = "FOLDER", value_parser = out_folder::named)]
    to: String,
    /// Write only the rows of the table, without the dense part: for own models, whose code is not in the model folder.
    #[arg(long, conflicts_with_all = ["delta_from", "apply"])]
    tables_only: bool,
    /// Write a delta from this older model, a model folder or a folder of checkpoints.
    #[arg(long, value_name = "FOLDER", conflicts_with = "apply")]
    delta_from: Option<String>,
    /// How the delta stores embeddings and other parts of rows that have several values; the linear weight is f32 always.
    #[arg(long, value_name = "FORMAT", requires = "delta_from", default_value = "f32")]
    values: Values,
    /// Apply a delta (a path or a URL), and write a model folder; may be repeated, in order.
    #[arg(long, value_name = "FOLDER")]
    apply: Vec<String>,
    /// Replace the folder if it holds files.
    #[arg(long)]
    replace: bool,
}

/// How a delta stores the values of rows.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Values {
    /// Four bytes a value; the delta is exact
    F32,
    /// Two bytes a value
    F16,
    /// One byte a value, and a scale for each row
    Int8,
}

impl From<Values> for Storage {
    fn from(values: Values) -> Self {
        match values {
            Values::F32 => Self::F32,
            Values::F16 => Self::F16,
            Values::Int8 => Self::Int8,
        }
    }
}

impl Export {
    pub(crate) fn run(self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        let stop = Stop::listen_and_say(logs.log_format, NOTHING_IS_WRITTEN, exit::DRAINED)?;
        let folder = Folder::from(&self.to).with_stores(&context.stores).stopped_by(stop.flag());
        StagedFolder::probe(&folder, self.replace)?;
        // With --apply, the new model may replace the model that it was made from.
        if self.replace && self.apply.is_empty() {
            let models: Vec<&str> = std::iter::once(&self.model).chain(&self.delta_from).map(String::as_str).collect();
            out_folder::check_replaced(&self.to, &models, None)?;
        }
        let load = |from: &str| {
            let _shown = Doing::show("loading the model", logs);
            Model::load_saved(from, 1, context)
        };
        if let Some(old) = &self.delta_from {
            let (old, new) = (load(old)?, load(&self.model)?);
            stop.begin()?;
            let writing = Doing::show("comparing the models, writing the delta", logs);
            let delta = new.write_delta(&old, folder, self.values.into(), self.replace)?;
            drop(writing);
            let (changed, removed) = (delta.changed.rows.unwrap_or(0), delta.removed.rows.unwrap_or(0));
            let values = delta.gives.map_or_else(String::new, |_| format!(", values in {}", delta.values));
            out::print_or_drop(format_args!(
                "wrote {}: {} of {} changed{values}, {} removed; from version {} to {}",
                self.to,
                counted(changed, "row"),
                commas(delta.rows),
                commas(removed),
                delta.from,
                delta.to
            ));
            return Ok(());
        }
        let mut model = load(&self.model)?;
        if !self.apply.is_empty() {
            for path in &self.apply {
                let _shown = Doing::show("applying the delta", logs);
                let delta = Delta::read(Folder::from(path.as_str()), context)?;
                model = model.merged(&delta).map_err(|fault| fault.context(format!("cannot apply {path}")))?;
            }
            let versions = model.versions()?;
            stop.begin()?;
            let writing = Doing::show("writing the model", logs);
            let manifest = model.save(folder)?;
            drop(writing);
            let rows: u64 = manifest.tables.iter().map(|table| table.rows).sum();
            out::print_or_drop(format_args!("wrote {}: {}; {versions}", self.to, counted(rows, "row")));
            return Ok(());
        }
        let parts = if self.tables_only { ExportParts::Tables } else { ExportParts::All };
        stop.begin()?;
        let writing = Doing::show("writing the export", logs);
        let manifest = model.export(folder, parts, self.replace)?;
        drop(writing);
        let dense = manifest.onnx.as_ref().map_or_else(String::new, |onnx| format!(", {}", onnx.path));
        out::print_or_drop(format_args!(
            "wrote {}: {} of the table{dense}; version {}",
            self.to,
            counted(manifest.rows + manifest.groups.iter().map(|group| group.rows).sum::<u64>(), "row"),
            manifest.model
        ));
        Ok(())
    }
}
