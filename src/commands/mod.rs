//! The program's commands: one file each.

mod bench;
mod data;
mod eval;
mod launch;
mod plan;
mod role;
pub(crate) mod train;

use crate::Fault;
use clap::Subcommand;

use crate::logs::Format;
use crate::pipelines::Context;

/// What the program does.
#[derive(Subcommand)]
pub(crate) enum Command {
    Train(train::Train),
    Launch(launch::Launch),
    Role(role::RoleCommand),
    Eval(eval::Eval),
    Plan(plan::Plan),
    #[command(subcommand)]
    Data(data::Data),
    #[command(subcommand)]
    Bench(bench::Bench),
}

pub(crate) fn run(command: Command, format: Format, log: &str, context: &Context) -> Result<(), Fault> {
    match command {
        Command::Train(train) => train.run(format, context),
        Command::Launch(launch) => launch.run(log),
        Command::Role(role) => role.run(format, context),
        Command::Eval(eval) => eval.run(context),
        Command::Plan(plan) => plan.run(context),
        Command::Data(data) => data.run(format),
        Command::Bench(bench) => bench.run(),
    }
}
