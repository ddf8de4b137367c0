//! `forebay role`: one process of a run of several, started by a scheduler.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::Fault;
use crate::actors::{Domain, FaultKind, commas, counted};
use crate::dashboard::Dashboard;
use crate::net::Security;
use crate::pipelines::cluster::{self, ClusterProcess, DEFAULT_PORT, ProcessConfig, RunStatus};
use crate::pipelines::roles::{self, Ps, Reader};
use crate::pipelines::{Context, Job};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::job_args::RunArgs;
use super::security_args::RunSecurityArgs;
use super::train::{self, AtEnd};
use crate::exit::Ended;
use crate::logs::Logs;
use crate::report::ReportFiles;
#[cfg(feature = "otel")]
use crate::spans::SpanService;
use crate::stop::Stop;
use crate::tensorboard::TensorBoard;
use crate::{exit, listen_address, out, parent};

/// The role of the process.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Reads, parses and batches rows.
    Reader,
    /// Holds shards of the table; the first one also runs the coordinator.
    Ps,
    /// Trains.
    Trainer,
}

/// Run one process of a run of several: forebay role reader|ps|trainer JOB.toml
///
/// Give every process the same job, whose [placement] says how many processes each role has. Every process needs the address of the
/// coordinator (the first ps, or the trainer if there is no ps), and joins there. The run starts when all have joined; docs/cluster.md says
/// how long it waits for trainers that it can do without.
///
/// Rank and addresses may come from environment variables that Slurm and Kubernetes set; see docs/cluster.md.
#[derive(Args)]
#[command(after_help = "Examples (three shells on one machine, placement.readers=1 placement.ps=1):
  forebay role ps job.toml --listen 127.0.0.1:7600
  forebay role trainer job.toml --coordinator 127.0.0.1:7600
  forebay role reader job.toml --coordinator 127.0.0.1:7600")]
pub(crate) struct RoleCommand {
    /// The role of this process.
    #[arg(value_enum)]
    role: Role,
    #[command(flatten)]
    run_args: RunArgs,
    /// Rank among the processes of this role, from 0. Without it: SLURM_ARRAY_TASK_ID, SLURM_PROCID, JOB_COMPLETION_INDEX, or
    /// the number at the end of POD_NAME; else 0.
    #[arg(long, env = "FOREBAY_RANK", value_name = "RANK")]
    rank: Option<u32>,
    /// The address to listen on. Default: 127.0.0.1, port 7600 for the coordinator, else any free port.
    #[arg(long, env = "FOREBAY_LISTEN", value_name = "HOST:PORT", value_parser = listen_address::parse)]
    listen: Option<SocketAddr>,
    /// The address at which others reach this process, if it is not the --listen address.
    #[arg(long, env = "FOREBAY_ADVERTISE", value_name = "HOST[:PORT]")]
    advertise: Option<String>,
    /// The address of the coordinator. Default: network.coordinator of the job, or 127.0.0.1:7600.
    #[arg(long, env = "FOREBAY_COORDINATOR", value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// The name of the run. Processes refuse processes of other runs. Default: network.run of the job, or "forebay".
    #[arg(long, env = "FOREBAY_RUN", value_name = "NAME")]
    run: Option<String>,
    #[command(flatten)]
    security: RunSecurityArgs,
    /// The `launch` that started this process: it ends with it.
    #[arg(long, hide = true)]
    parent: Option<u32>,
    /// Whatever started this process starts it again after exit code 3. If the model of a training that has ended cannot be saved, the code
    /// is 7 instead: training again would not help.
    #[arg(long, hide = true)]
    restarted_on_fault: bool,
    /// The run was asked to drain before this process was started.
    #[arg(long, hide = true)]
    drains: bool,
    /// The run has made checkpoints before this process was started.
    #[arg(long, hide = true)]
    has_checkpoints: bool,
}

impl RoleCommand {
    pub(crate) fn run(self, logs: &Logs, context: &Context) -> Result<Ended, Fault> {
        self.parent.map_or(Ok(()), parent::end_with)?;
        let launched = self.parent.is_some();
        let stop = Stop::listen(logs.log_format)?;
        if launched {
            stop.only_drains();
        }
        let args = &self.run_args;
        let job = args.load()?;
        stop.ends_with_checkpoint(job.checkpoint.to.is_some());
        let process = {
            let stop = stop.clone();
            ClusterProcess::new(self.process_config(&job)?).stopped_by(move || stop.asked())
        };
        if process.config().may_leave(&job) {
            stop.leaves();
        }
        // `launch` has found a disk that was full before it started the process for the first time.
        let goes_on = args.resume || launched;
        let report = ReportFiles::new(args.report.clone(), goes_on)?;
        // Each attempt of the run is shown at the same address.
        let shows = matches!(self.role, Role::Trainer) && process.config().rank == 0;
        let security = || Security::load(&process.config().security);
        let dashboard = |listen| Dashboard::start(listen, &security()?, logs.log_format);
        let dashboard = args.dashboard.filter(|_| shows).map(|listen| unless_taken(dashboard(listen), goes_on));
        let dashboard = dashboard.transpose()?.flatten();
        let tensorboard = args.tensorboard.as_ref().filter(|_| shows);
        let tensorboard = tensorboard.map(|folder| TensorBoard::start(folder, goes_on)).transpose()?;
        #[cfg(feature = "otel")]
        let (_spans, context) = &{
            let config = process.config();
            let (role, rank) = (config.role, config.rank);
            let (name, instance) = (format!("forebay-{role}"), format!("{role}-{rank}"));
            let service = SpanService { name, instance, tls_ca: config.security.tls_ca.clone() };
            args.start_spans(context, Some(&config.run), &service)?
        };
        // A process that is asked to shut down before it has joined joins nevertheless, to tell the others, which may wait for it.
        stop.has_begun();
        let ended = process.take_part(|process| match self.role {
            Role::Reader => {
                let report = Reader::start(&job, process, context)?.run(|| stop.asked(), |_| {})?;
                match logs.is_json() {
                    true => out::print_or_drop(json!({ "read": { "report": report } })),
                    false => {
                        if !launched {
                            out::print_or_drop(&report);
                        }
                        out::print_or_drop(format_args!("read {}", counted(report.ledger.read, "row")));
                    }
                }
                Ok(Ended::Done)
            }
            Role::Ps => {
                let first = process.config().rank == 0;
                let ps = Ps::start(&job, process, context)?;
                let mut log = ProgressLog::default();
                ps.run(
                    || stop.asked(),
                    |status| {
                        if first {
                            log.update(status)
                        }
                    },
                )?;
                Ok(Ended::Done)
            }
            Role::Trainer => {
                let saves = process.config().rank == 0;
                let (dashboard, tensorboard) = (dashboard.as_ref(), tensorboard.as_ref());
                let end = AtEnd { report: &report, dashboard, tensorboard, saves, launched };
                train::run(roles::trainer(job.clone(), process, context)?, &stop, end, logs)
            }
        });
        match exit::unless_over(ended) {
            // For `launch` and others that start a process again after any other fault of a disk or a store.
            Err(fault)
                if (launched || self.restarted_on_fault)
                    && fault.kind == FaultKind::Unsaved
                    && fault.domain == Domain::External =>
            {
                exit::report(&fault, logs.log_format);
                Ok(Ended::Unsaved)
            }
            ended => ended,
        }
    }

    fn process_config(&self, job: &Job) -> Result<ProcessConfig, Fault> {
        let network = &job.network;
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut process = ProcessConfig {
            role: match self.role {
                Role::Reader => cluster::Role::Reader,
                Role::Ps => cluster::Role::Ps,
                Role::Trainer => cluster::Role::Trainer,
            },
            rank: match self.rank {
                Some(rank) => rank,
                None => scheduled_rank(|name| std::env::var(name).ok())?.unwrap_or(0),
            },
            listen: SocketAddr::new(here, 0),
            advertise: self.advertise.clone(),
            coordinator: self
                .coordinator
                .clone()
                .or_else(|| network.coordinator.clone())
                .unwrap_or_else(|| SocketAddr::new(here, DEFAULT_PORT).to_string()),
            run: self.run.clone().or_else(|| network.run.clone()).unwrap_or_else(|| "forebay".into()),
            security: self.security.files(network.security_files()),
            resume: self.run_args.resume,
            drains: self.drains,
            has_checkpoints: self.has_checkpoints,
            supervised: self.parent.is_some(),
        };
        let port = if process.coordinates(job) { DEFAULT_PORT } else { 0 };
        process.listen = self.listen.unwrap_or(SocketAddr::new(here, port));
        Ok(process)
    }
}

/// The dashboard, or none if its address is taken and the run may have trained before: the run goes on without the page.
///
/// # Errors
/// Any other fault.
fn unless_taken<T>(dashboard: Result<T, Fault>, goes_on: bool) -> Result<Option<T>, Fault> {
    match dashboard {
        Err(fault) if goes_on && fault.retryable => {
            tracing::warn!("the run goes on without its dashboard: {fault}");
            Ok(None)
        }
        started => started.map(Some),
    }
}

/// The rank that a scheduler gave this process.
pub(super) fn scheduled_rank(variable: impl Fn(&str) -> Option<String>) -> Result<Option<u32>, Fault> {
    for name in ["SLURM_ARRAY_TASK_ID", "SLURM_PROCID", "JOB_COMPLETION_INDEX"] {
        if let Some(text) = variable(name) {
            let wrong = |e| Fault::user(format!("{name} is {text:?}, expected a rank of at least 0")).because(e);
            return text.parse().map(Some).map_err(wrong);
        }
    }
    let Some(pod) = variable("POD_NAME") else { return Ok(None) };
    let ordinal = pod.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse().ok());
    ordinal.map(Some).ok_or_else(|| {
        Fault::user(format!("POD_NAME is {pod:?}, expected the rank at its end, as a StatefulSet names its pods: ps-0"))
    })
}

/// Logs how far the run is, every ten seconds.
#[derive(Default)]
struct ProgressLog {
    last: Option<std::time::Instant>,
}

impl ProgressLog {
    fn update(&mut self, status: &RunStatus) {
        let now = std::time::Instant::now();
        if self.last.is_some_and(|last| now - last < std::time::Duration::from_secs(10)) {
            return;
        }
        let first = self.last.replace(now).is_none();
        let (done, of) = (status.windows_done, status.windows_total);
        if !first && of > 0 {
            let (rows, again) = (status.counts.trained, status.lost_leases);
            tracing::info!(
                rows,
                windows = done,
                of,
                again,
                "{} rows are trained on, {done} of {}",
                commas(rows),
                counted(of, "window")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: another program took the port while the trainer was started again, and the whole run ended.
    #[test]
    fn a_run_that_goes_on_does_without_a_dashboard_whose_port_is_taken() {
        let taken = || Err::<(), _>(Fault::user("is another process there already?").retryable());
        assert!(unless_taken(taken(), true).unwrap().is_none());
        assert!(unless_taken(taken(), false).is_err(), "the user can correct it");
        assert!(unless_taken(Err::<(), _>(Fault::user("can be reached from other machines")), true).is_err());
        assert!(unless_taken(Ok(()), true).unwrap().is_some());
    }

    #[test]
    fn ranks_come_from_the_scheduler() {
        let rank = |set: &[(&str, &str)]| {
            scheduled_rank(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        assert_eq!(rank(&[]).unwrap(), None);
        assert_eq!(rank(&[("SLURM_PROCID", "0"), ("SLURM_ARRAY_TASK_ID", "7")]).unwrap(), Some(7));
        assert_eq!(rank(&[("JOB_COMPLETION_INDEX", "3")]).unwrap(), Some(3));
        assert_eq!(rank(&[("POD_NAME", "forebay-ps-12")]).unwrap(), Some(12));
        assert!(rank(&[("POD_NAME", "forebay")]).unwrap_err().to_string().contains("\"forebay\""));
        assert!(rank(&[("SLURM_PROCID", "x")]).unwrap_err().to_string().contains("SLURM_PROCID is \"x\""));
    }
}
