//! `forebay export`: a model for other runtimes.

use crate::actors::commas;
use crate::connectors::staged::{Folder, StagedFolder};
use crate::pipelines::{Context, ExportParts};
use crate::{Fault, Model};
use clap::Args;

use crate::out;

/// Write a model for other runtimes: forebay export --model FOLDER --to FOLDER
///
/// Writes the dense part as ONNX (dense.onnx), and the rows of the table as Parquet and as numpy arrays, by ascending key. See
/// docs/export.md for the inputs of the dense part, and docs/model-folder.md for the keys of values.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay export --model rows/model --to rows/export
  forebay export --model hdfs://nameservice/models/ctr --to export --tables-only")]
pub(crate) struct Export {
    /// The model folder: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// The folder to write, a path or a URL; it appears when it is complete.
    #[arg(long, value_name = "FOLDER")]
    to: String,
    /// Write the rows of the table alone, without the dense part: for own models, whose code is not in the model folder.
    #[arg(long)]
    tables_only: bool,
    /// Replace the folder if it holds files.
    #[arg(long)]
    replace: bool,
}

impl Export {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let folder = Folder::from(&self.to).with_stores(&context.stores);
        StagedFolder::probe(&folder, self.replace)?;
        let model = Model::load_with(&self.model, 1, context)?;
        let parts = if self.tables_only { ExportParts::Tables } else { ExportParts::All };
        let manifest = model.export(folder, parts, self.replace)?;
        let dense = manifest.onnx.as_ref().map_or_else(String::new, |onnx| format!(", {}", onnx.path));
        out::print(format_args!(
            "wrote {}: {} rows of the table{dense}; version {}",
            self.to,
            commas(manifest.rows),
            manifest.model
        ))
    }
}
