//! `forebay embed`: the vectors of users or items by a model of two towers, as Parquet files and as a numpy array.

use std::io::Write as _;

use crate::Fault;
use crate::actors::StageCx;
use crate::connectors::Input;
use crate::connectors::convert::{ParquetOptions, ParquetWriter, block_on};
use crate::connectors::staged::{Folder, StagedFolder};
use crate::models::TowerSide;
use crate::pipelines::job::Paths;
use crate::pipelines::{Context, npy_header};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Float32Type;
use clap::Args;

use super::bar::wrote;
use super::predict::{counts, next};
use super::readers_apart::Predicting;
use super::{column_names, job_args, out_folder};
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::out;
use crate::scoring_progress::ScoringProgress;
use crate::stop::Stop;

/// The name of the array. Readers of Parquet folders leave out files whose names begin with `_`.
const ARRAY: &str = "_vectors.npy";

/// Write the vectors of items or users: forebay embed --model FOLDER --data PATH --tower item --out FOLDER
///
/// For models of kind "two_towers". Writes one row for each row of the input, in the same order: the columns of --keep and `vector`, a
/// fixed-size list of floats for a nearest-neighbour index. The rows need only the columns of this tower, and no label. Several --data are
/// read one after the other.
///
/// By default a row that cannot be parsed ends the run, and nothing is written. With --set data.on_bad_row=skip the row stays in the output
/// with a null vector; a line of text that is not a row is left out. The end of the run counts both.
///
/// Ctrl-C or SIGTERM stops without writing the folder; the exit code is 5.
#[derive(Args)]
#[command(after_help = "Examples:
  forebay embed --model rows/model --data rows/items.parquet --tower item --keep item_id --out rows/item-vectors
  forebay embed --model rows/model --data rows/users.parquet --tower user --keep user_id --npy --out rows/user-vectors")]
pub(crate) struct Embed {
    /// The model folder: a path or a URL (hdfs://, s3://, file://).
    #[arg(long, value_name = "FOLDER")]
    model: String,
    /// A file, a folder or a glob of rows (a path or a URL), with the columns of the tower; may be repeated.
    #[arg(long, value_name = "PATH", required = true)]
    data: Vec<String>,
    /// The tower: user or item.
    #[arg(long, value_name = "TOWER", value_parser = tower)]
    tower: TowerSide,
    /// The folder to write as Parquet, a path or a URL; it appears when it is complete.
    #[arg(long, value_name = "FOLDER", value_parser = out_folder::named)]
    out: String,
    /// Columns of the input to write beside the vector, for instance item_id; may be repeated. A name with a comma, or with spaces around
    /// it, stands in double quotes: --keep 'item_id,"buy, now"'.
    #[arg(long, value_name = "COLUMNS")]
    keep: Vec<String>,
    /// Also write _vectors.npy, a numpy array of 32-bit floats, [rows, length of a vector]; a row without a vector is NaN. The
    /// vectors are held in memory until the end.
    #[arg(long)]
    npy: bool,
    /// Override a field of the model's job, for instance data.on_bad_row=skip; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Replace the folder if it holds files.
    #[arg(long)]
    replace: bool,
}

fn tower(text: &str) -> Result<TowerSide, String> {
    let side = TowerSide::BOTH.into_iter().find(|side| side.name() == text);
    side.ok_or_else(|| "expected user or item".to_owned())
}

impl Embed {
    pub(crate) fn run(self, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        let keep = column_names::split(&self.keep)?;
        let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
        let folder = Folder::from(&self.out).with_stores(&context.stores);
        let stop = Stop::listen_and_say(
            logs.log_format,
            "no vectors are written, unless they are complete by now",
            exit::DRAINED,
        )?;
        let data = Input::all(self.data.iter().map(Input::from)).with_stores(&context.stores);
        StagedFolder::probe(&folder, self.replace)?;
        if self.replace {
            out_folder::check_replaced(&self.out, &[&self.model], Some(&data))?;
        }
        out_folder::check_not_among_rows(&self.out, &data)?;
        let model = job_args::load_model(&self.model, &self.settings, logs, context)?;
        out_folder::check_without_bad_rows(&self.out, &model.job.data.on_bad_row, out_folder::WRITE_TO)?;
        let mut vectors = Predicting::alone(model.embed(Paths(self.data.clone()), self.tower, &keep)?);
        stop.begin()?;
        block_on(self.write(&mut vectors, folder, &stop, logs))
    }

    async fn write(
        &self,
        vectors: &mut Predicting<'_>,
        folder: Folder,
        stop: &Stop,
        logs: &Logs,
    ) -> Result<Ended, Fault> {
        let options = ParquetOptions { replace: self.replace, ..ParquetOptions::default() };
        let mut writer = ParquetWriter::begin(&StageCx::detached("vectors"), folder, &options)?;
        let (mut progress, mut array) = (ScoringProgress::new("embedding", logs), NumpyArray::default());
        while let Some(batch) = next(vectors, stop).await? {
            writer.write(&batch).await?;
            if self.npy {
                array.add(&batch);
            }
            progress.show(|| vectors.predictions.scored());
        }
        drop(progress);
        let Some(counts) = counts(&vectors.predictions, &self.data.join(", "), "embed", "vector")? else {
            return Ok(Ended::Drained);
        };
        let written = writer.finish_beside(|staged| if self.npy { array.write(staged) } else { Ok(()) }).await?;
        out::print_or_drop(wrote(&self.out, &written));
        counts.iter().for_each(out::print_or_drop);
        Ok(Ended::Done)
    }
}

/// All vectors, row after row.
#[derive(Default)]
struct NumpyArray {
    values: Vec<f32>,
    rows: usize,
    dim: usize,
}

impl NumpyArray {
    fn add(&mut self, batch: &RecordBatch) {
        let vectors = batch.columns().last().expect("the vectors are the last column").as_fixed_size_list();
        self.dim = vectors.value_length() as usize;
        self.rows += vectors.len();
        for row in 0..vectors.len() {
            match vectors.is_null(row) {
                true => self.values.extend(std::iter::repeat_n(f32::NAN, self.dim)),
                false => self.values.extend_from_slice(vectors.value(row).as_primitive::<Float32Type>().values()),
            }
        }
    }

    fn write(&self, staged: &StagedFolder) -> Result<(), Fault> {
        let mut file = staged.create(ARRAY)?;
        let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let written = npy_header("<f4", &[self.rows, self.dim]).and_then(|header| {
            file.write_all(&header)?;
            file.write_all(&bytes)
        });
        written.map_err(|e| Fault::external(format!("cannot write {ARRAY}")).because(e))?;
        file.finish().map(drop)
    }
}
