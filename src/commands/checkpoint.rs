//! `forebay checkpoint`: list, verify and compact the checkpoints of a run.

use crate::Fault;
use crate::actors::{FaultKind, counted, size};
use crate::pipelines::{CheckpointFolder, CheckpointManifest, Compaction, Context};
use clap::{Args, Subcommand};

use crate::logs::Logs;
use crate::stop::{NOTHING_IS_WRITTEN, Stop};
use crate::{exit, out};

/// List, verify and compact the checkpoints of a run
#[derive(Subcommand)]
#[command(after_help = "Examples:
  forebay checkpoint list rows/checkpoints
  forebay checkpoint verify hdfs://nameservice/checkpoints
  forebay checkpoint compact rows/checkpoints --keep 1
  forebay checkpoint compact rows/checkpoints --number 12 --to rows/best")]
pub(crate) enum Checkpoint {
    /// List the checkpoints in a folder, the oldest first
    List(Place),
    /// Read all files of every checkpoint in a folder, and compare their lengths and checksums
    Verify(Place),
    /// Merge the layers of the newest checkpoint into one full checkpoint
    ///
    /// The full checkpoint gets the next number, and appears complete or not at all. Older checkpoints stay, unless --keep says how many. A
    /// run that writes into the folder may go on. Memory: about 20 bytes for each key of the changed rows, and a page of rows.
    Compact(Compact),
}

#[derive(Args)]
pub(crate) struct Compact {
    /// The folder of the checkpoints (checkpoint.to of the job): a path or a URL.
    folder: String,
    /// The number of the checkpoint. Default: the newest complete one. An older one needs --to.
    #[arg(long)]
    number: Option<u64>,
    /// Write the checkpoint to this folder, under its own number.
    #[arg(long, value_name = "FOLDER")]
    to: Option<String>,
    /// Then keep this many of the newest checkpoints, and remove the others.
    #[arg(long, value_name = "N", conflicts_with = "to", value_parser = clap::value_parser!(u16).range(1..))]
    keep: Option<u16>,
}

#[derive(Args)]
pub(crate) struct Place {
    /// The folder of the checkpoints (checkpoint.to of the job): a path or a URL.
    folder: String,
}

impl Checkpoint {
    pub(crate) fn run(self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        let at = match &self {
            Self::Compact(compact) => return compact.run(context, logs),
            Self::List(Place { folder }) | Self::Verify(Place { folder }) => folder,
        };
        let folder = CheckpointFolder::open(at, context)?;
        let numbers = folder.numbers_with(None)?;
        let mut unread = None;
        for number in numbers {
            let read = match self {
                Self::Verify(_) => folder.verify(number),
                _ => folder.manifest(number),
            };
            match read {
                Ok(manifest) => out::print(describe(&manifest, matches!(self, Self::Verify(_))))?,
                Err(fault) => {
                    out::print(format!("checkpoint {number}: {fault}"))?;
                    unread.get_or_insert(fault);
                }
            }
        }
        unread.map_or(Ok(()), |fault: Fault| match fault.kind {
            FaultKind::Damaged => Err(Fault::user(format!("a checkpoint in {at} is damaged")).because(fault)),
            _ => Err(fault),
        })
    }
}

impl Compact {
    fn run(&self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        let stop = Stop::listen_and_say(logs.log_format, NOTHING_IS_WRITTEN, exit::DRAINED)?;
        let open = |at| Ok::<_, Fault>(CheckpointFolder::open(at, context)?.stopped_by(stop.flag()));
        let (folder, to) = (open(&self.folder)?, self.to.as_deref().map(open).transpose()?);
        let compaction = folder.compaction(self.number, to.as_ref())?;
        stop.begin()?;
        let compacted = compaction.map(Compaction::write).transpose()?;
        self.keep.map_or(Ok(()), |keep| folder.prune(usize::from(keep)))?;
        match compacted {
            Some(manifest) => out::print_or_drop(describe(&manifest, false)),
            None => out::print_or_drop(format!("the newest checkpoint in {} is full already", self.folder)),
        }
        Ok(())
    }
}

fn describe(manifest: &CheckpointManifest, verified: bool) -> String {
    let bytes: u64 = manifest.files().map(|file| file.bytes).sum();
    let layers = manifest.tables.iter().map(|table| table.layers.len()).max().unwrap_or(0);
    let of = match layers {
        0 | 1 => "all rows of the table".to_owned(),
        layers => format!("all rows of the table and {} of changes", counted(layers - 1, "layer")),
    };
    format!(
        "checkpoint {}: {} trained on; {of}, {}, {}{}",
        manifest.number,
        counted(manifest.rows_trained(), "row"),
        counted(manifest.files().count(), "file"),
        size(bytes),
        if verified { ", whole" } else { "" }
    )
}
