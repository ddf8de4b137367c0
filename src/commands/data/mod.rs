//! `forebay data`: make, convert and inspect rows.
//!
//! `synth.rs`, `convert.rs` and `inspect.rs` are the commands, with `commands/stats.rs`. `input_form.rs`: the files that they read.
//! `parquet_folder.rs`: the folder that they write.

mod convert;
mod input_form;
mod inspect;
mod parquet_folder;
mod synth;

use clap::Subcommand;

use self::convert::Convert;
use self::inspect::Inspect;
use self::synth::Synth;
use super::stats::Stats;
use crate::Fault;
use crate::logs::Logs;
use crate::pipelines::Context;

/// Generate, convert and inspect rows
#[derive(Subcommand)]
pub(crate) enum Data {
    Synth(Synth),
    Convert(Convert),
    Inspect(Inspect),
    Stats(Stats),
}

impl Data {
    pub(crate) fn run(self, context: &Context, logs: &Logs) -> Result<(), Fault> {
        match self {
            Self::Stats(stats) => stats.run(context),
            Self::Synth(synth) => synth.run(logs),
            Self::Convert(convert) => convert.run(logs),
            Self::Inspect(inspect) => inspect.run(logs),
        }
    }
}
