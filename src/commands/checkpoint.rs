//! `forebay checkpoint`: list and verify the checkpoints of a run.

use crate::Fault;
use crate::actors::commas;
use crate::pipelines::{CheckpointFolder, CheckpointManifest, Context};
use clap::{Args, Subcommand};

use crate::out;

/// List and verify the checkpoints of a run
#[derive(Subcommand)]
#[command(after_help = "Examples:
  forebay checkpoint list rows/checkpoints
  forebay checkpoint verify hdfs://nameservice/checkpoints")]
pub(crate) enum Checkpoint {
    /// List the checkpoints in a folder, the oldest first
    List(Place),
    /// Read all files of every checkpoint in a folder, and compare their lengths and checksums
    Verify(Place),
}

#[derive(Args)]
pub(crate) struct Place {
    /// The folder of the checkpoints (checkpoint.to of the job): a path or a URL.
    folder: String,
}

impl Checkpoint {
    pub(crate) fn run(self, context: &Context) -> Result<(), Fault> {
        let (Self::List(Place { folder: at }) | Self::Verify(Place { folder: at })) = &self;
        let folder = CheckpointFolder::open(at, context)?;
        let numbers = folder.numbers()?;
        if numbers.is_empty() {
            return Err(Fault::user(format!("{at} has no checkpoints")));
        }
        let mut damaged = None;
        for number in numbers {
            let read = match self {
                Self::List(_) => folder.manifest(number),
                Self::Verify(_) => folder.verify(number),
            };
            match read {
                Ok(manifest) => out::print(describe(&manifest, matches!(self, Self::Verify(_))))?,
                Err(fault) => {
                    out::print(format!("checkpoint {number}: {fault}"))?;
                    damaged.get_or_insert(fault);
                }
            }
        }
        damaged.map_or(Ok(()), |fault| Err(Fault::user(format!("a checkpoint in {at} is damaged")).because(fault)))
    }
}

fn describe(manifest: &CheckpointManifest, verified: bool) -> String {
    let bytes: u64 = manifest.files().map(|file| file.bytes).sum();
    let layers = manifest.tables.iter().map(|table| table.layers.len()).max().unwrap_or(0);
    let of = match layers {
        0 | 1 => "all rows of the table".to_owned(),
        layers => format!("all rows of the table and {} layers of changes", layers - 1),
    };
    format!(
        "checkpoint {}: {} rows trained on; {of}, {} files, {:.1} MB{}",
        manifest.number,
        commas(manifest.rows_trained()),
        manifest.files().count(),
        bytes as f64 / 1e6,
        if verified { ", whole" } else { "" }
    )
}
