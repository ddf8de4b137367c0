//! The program's commands: one file each.

mod bench;
mod data;
mod eval;
mod plan;
pub(crate) mod train;

use clap::Subcommand;
use forebay::Fault;

use crate::logs::Format;

/// What the program does.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Train a model: forebay train JOB.toml [--set key=value ...]
    Train(train::Train),
    /// Score a model folder on rows: forebay eval --model DIR --data PATH
    Eval(eval::Eval),
    /// Print the graph of a job with capacities and places, and run nothing
    Plan(plan::Plan),
    /// Make, convert and inspect rows
    #[command(subcommand)]
    Data(data::Data),
    /// Measure this machine: feed, overlap, whole training
    #[command(subcommand)]
    Bench(bench::Bench),
}

pub(crate) fn run(command: Command, format: Format) -> Result<(), Fault> {
    match command {
        Command::Train(train) => train.run(format),
        Command::Eval(eval) => eval.run(),
        Command::Plan(plan) => plan.run(),
        Command::Data(data) => data.run(format),
        Command::Bench(bench) => bench.run(),
    }
}
