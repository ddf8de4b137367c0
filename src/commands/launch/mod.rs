//! `forebay launch`: all processes of a job, as child processes on this machine.
//!
//! `child.rs` starts a process and says how it ended, `supervisor.rs` decides what to do then, and `restarts.rs` limits restarts.
//! `output.rs` merges the output of all processes, and `watch.rs` finds processes that hang. `port.rs` finds an address for the
//! coordinator, `token.rs` holds the token of the run, `memory_file.rs` the files of the token and the job, and `program.rs` the program.
//! `nodes.rs` binds processes to NUMA nodes, `out_of_memory.rs` finds out whether the kernel killed a process, and `readers.rs` starts the
//! readers of `forebay predict`.

mod child;
mod memory_file;
mod nodes;
mod out_of_memory;
mod output;
mod port;
mod program;
mod readers;
mod restarts;
mod supervisor;
mod token;
mod watch;

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use crate::{Fault, Job};
use clap::Args;

use self::child::Child;
use self::memory_file::MemoryFile;
use self::nodes::Nodes;
use self::output::Output;
use self::port::free_address;
use self::program::RunningProgram;
pub(super) use self::readers::Readers;
use self::supervisor::Supervisor;
use self::token::Token;
use self::watch::Watch;
use super::job_args::RunArgs;
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::net::SecurityFiles;
use crate::pipelines::check_predecessor;
use crate::pipelines::cluster::{Role, SupervisorClient, ended_before};
use crate::pipelines::{Context, check_checkpoints, preflight};
use crate::report::ReportFiles;
#[cfg(feature = "otel")]
use crate::spans::{TRACEPARENT, new_traceparent};
use crate::stop::Stop;
use crate::tensorboard::TensorBoard;

/// The name of the run. Only its processes know its token.
const RUN: &str = "launch";

/// Run all processes of a job on this machine: forebay launch JOB.toml
///
/// Starts the readers, ps and trainers of the job's [placement], with one merged log. They listen on loopback only, with a token for this
/// run. Restarts a process that was killed, lost a disk or a network, or hangs for placement.lease_seconds. Ctrl-C drains: the run trains
/// on the rows that it has read, then saves and evaluates the model; with checkpoint.to it leaves a checkpoint instead. A second Ctrl-C
/// stops at once.
#[derive(Args)]
#[command(after_help = "Example:
  forebay launch examples/criteo.toml --set placement.readers=2 --set placement.ps=2")]
pub(crate) struct Launch {
    #[command(flatten)]
    run: RunArgs,
    /// The most restarts of processes that were killed, hang or ended with exit code 3. The count starts again from 0 when the run has
    /// trained for ten minutes after a restart. Processes that end within 5 s count once. A restart that fails counts, too.
    #[arg(long, value_name = "N", default_value_t = 10)]
    restarts: u32,
    /// Do not bind processes to NUMA nodes. By default, if all nodes have the same number of cores and of trainers, `launch` binds each
    /// process to one node. It leaves a role unbound whose processes do not divide evenly among the nodes.
    #[arg(long)]
    no_numa: bool,
}

impl Launch {
    pub(crate) fn run(self, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        let stop = Stop::listen_and_tell(logs.log_format)?;
        let (job, text) = self.run.load_with_text()?;
        job.check()?;
        stop.ends_with_checkpoint(job.checkpoint.to.is_some());
        // Finds faults before any process starts.
        check_checkpoints(&job, self.run.resume, context)?;
        if self.run.resume
            && let Some(run) = ended_before(&job, context)
        {
            tracing::info!("{run}");
            return Ok(Ended::Done);
        }
        check_predecessor(&job, context)?;
        ReportFiles::new(self.run.report.clone(), self.run.resume)?;
        self.check_dashboard()?;
        self.run.tensorboard.as_deref().map_or(Ok(()), |folder| TensorBoard::probe(folder, self.run.resume))?;
        // A process that finds a full disk would be started again ten times.
        preflight(&job, context)?;
        stop.begin()?;
        let token = Token::new()?;
        // All processes read the same copy of the job: its file may change, or be a pipe, which can be read only once.
        let copy = text.map(|text| MemoryFile::new("forebay-job", text.as_bytes())).transpose();
        let copy = copy.map_err(|e| Fault::external("cannot keep the job file in memory").because(e))?;
        let job_file = copy.as_ref().map(MemoryFile::path);
        let output = Output::start(logs.is_json())?.with_own_log();
        let coordinator = free_address()?;
        // Held until all processes have ended: restarts need it.
        let program = RunningProgram::find()?;
        let children = self.children(&program, &job, job_file.as_deref(), logs, &token, &coordinator);
        let security = SecurityFiles { token_file: Some(token.file()), ..job.network.security_files() };
        let most_silence = Duration::from_secs_f64(job.placement.lease_seconds);
        let first = children.first().map_or_else(String::new, |child| child.name.clone());
        let watch = Watch::start(SupervisorClient::new(RUN, &coordinator, &security)?, first, most_silence)?;
        let ended = Supervisor::new(children, self.restarts, &output, watch, most_silence).run(&stop);
        output.finish(&stop);
        if let Ok(Ended::OnlySaved) = ended {
            let only_saved = "trainer 0 ended with exit code 6: the model is saved, but its evaluation or the report failed, or it is not \
                              that of the best evaluation: its last lines say which and why";
            exit::report(&Fault::external(only_saved), logs.log_format);
        }
        ended
    }

    /// Checks that only this machine can reach the page: no browser elsewhere has the token, which only the processes of the launch know.
    fn check_dashboard(&self) -> Result<(), Fault> {
        let Some(listen) = self.run.dashboard else { return Ok(()) };
        if !listen.ip().is_loopback() {
            return Err(Fault::user(format!(
                "--dashboard is {listen}, which can be reached from other machines: give 127.0.0.1:{port} and reach it through \
                 ssh -L {port}:127.0.0.1:{port}",
                port = listen.port()
            )));
        }
        let taken = |e| Fault::user(format!("--dashboard: cannot listen at {listen}")).because(e);
        TcpListener::bind(listen).map(drop).map_err(taken)
    }

    /// The processes of the job, not started yet. Processes that others connect to come first, and the coordinator is the first of all.
    fn children(
        &self,
        program: &RunningProgram,
        job: &Job,
        job_file: Option<&Path>,
        logs: &Logs,
        token: &Token,
        coordinator: &str,
    ) -> Vec<Child> {
        let placement = &job.placement;
        let roles = [(Role::Ps, placement.ps), (Role::Trainer, placement.trainers), (Role::Reader, placement.readers)];
        // All processes of this run give a batch the same trace; other runs give it other traces.
        #[cfg(feature = "otel")]
        let traceparent = std::env::var(TRACEPARENT).unwrap_or_else(|_| new_traceparent());
        let (mut children, settings) = (Vec::new(), self.run.settings());
        let cores = job.cores();
        let nodes = if self.no_numa { Nodes::default() } else { Nodes::of_machine() }.for_trainers(placement.trainers);
        for (role, count) in roles {
            // Comes after the settings of the user, which may say how many cores all processes have together.
            let cores = format!("pipeline.cores={}", job.cores_of_each(&role.to_string(), cores));
            for rank in 0..count {
                let mut command = program.command();
                command.args(logs.arguments()).args(["role", &role.to_string()]).args(job_file);
                for setting in settings.iter().chain([&cores]) {
                    command.args(["--set", setting]);
                }
                command
                    .arg("--rank")
                    .arg(rank.to_string())
                    .args(["--coordinator", coordinator])
                    .args(["--run", RUN])
                    .args(["--parent", &std::process::id().to_string()]);
                command.arg("--token-file").arg(token.file());
                let coordinates = rank == 0 && role == if placement.ps > 0 { Role::Ps } else { Role::Trainer };
                command.args(["--listen", if coordinates { coordinator } else { "127.0.0.1:0" }]);
                if let (Some(report), Role::Trainer, 0) = (&self.run.report, role, rank) {
                    command.arg("--report").arg(report);
                }
                if let (Some(dashboard), Role::Trainer, 0) = (&self.run.dashboard, role, rank) {
                    command.args(["--dashboard", &dashboard.to_string()]);
                }
                if let (Some(tensorboard), Role::Trainer, 0) = (&self.run.tensorboard, role, rank) {
                    command.arg("--tensorboard").arg(tensorboard);
                }
                #[cfg(feature = "otel")]
                if let Some(windows) = self.run.spans {
                    command.args(["--spans", &windows.to_string()]).env(TRACEPARENT, &traceparent);
                }
                if self.run.resume {
                    command.arg("--resume");
                }
                let mut child = Child::new(role, rank, command);
                if let Some(node) = nodes.of(rank, count) {
                    tracing::info!("{role} {rank} runs on NUMA node {}", node.number());
                    child.bind_to(node);
                }
                if job.checkpoint.to.is_some() && !self.run.resume {
                    child.when_started_again("--resume");
                }
                children.push(child);
            }
        }
        children
    }
}
