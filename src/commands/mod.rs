//! The program's commands: one file each.

mod bar;
mod bench;
mod checkpoint;
mod column_names;
mod data;
mod embed;
mod eval;
mod export;
mod job_args;
mod launch;
mod out_folder;
mod plan;
mod predict;
mod readers_apart;
mod role;
mod save;
mod security_args;
mod serve;
mod shell;
mod stats;
mod summary;
pub(crate) mod train;

use crate::Fault;
use crate::exit::Ended;
use clap::Subcommand;

use crate::logs::Logs;
use crate::pipelines::Context;

/// A command of the program.
#[derive(Subcommand)]
pub(crate) enum Command {
    Train(train::Train),
    Launch(launch::Launch),
    Role(Box<role::RoleCommand>),
    Eval(eval::Eval),
    Predict(Box<predict::Predict>),
    Embed(embed::Embed),
    Export(export::Export),
    Serve(serve::Serve),
    Plan(plan::Plan),
    #[command(subcommand)]
    Checkpoint(checkpoint::Checkpoint),
    #[command(subcommand)]
    Data(data::Data),
    #[command(subcommand)]
    Bench(bench::Bench),
    Completions(shell::Completions),
    Man(shell::Man),
}

pub(crate) fn run(
    command: Command,
    logs: &Logs,
    context: &Context,
    program: fn() -> clap::Command,
) -> Result<Ended, Fault> {
    match command {
        Command::Train(train) => return train.run(logs, context),
        Command::Launch(launch) => return launch.run(logs, context),
        Command::Role(role) => return role.run(logs, context),
        Command::Predict(predict) => return predict.run(logs, context),
        Command::Embed(embed) => return embed.run(logs, context),
        Command::Serve(serve) => return serve.run(logs, context),
        Command::Eval(eval) => eval.run(context, logs),
        Command::Export(export) => export.run(context, logs),
        Command::Plan(plan) => plan.run(context),
        Command::Checkpoint(checkpoint) => checkpoint.run(context, logs),
        Command::Data(data) => data.run(context, logs),
        Command::Bench(bench) => bench.run(context),
        Command::Completions(completions) => completions.run(program()),
        Command::Man(man) => man.run(program()),
    }?;
    Ok(Ended::Done)
}
