//! The arguments of `forebay predict` for readers in other processes, and the reader.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::Args;

use super::launch::Readers;
use super::role::scheduled_rank;
use super::security_args::RunSecurityArgs;
use super::{column_names, out_folder};
use crate::actors::{FaultKind, left_out_lines};
use crate::connectors::Input;
use crate::connectors::convert::block_on;
use crate::exit::{self, Ended};
use crate::logs::Logs;
use crate::net::SecurityFiles;
use crate::pipelines::cluster::{ClusterProcess, PredictionPlan, ProcessConfig, Role};
use crate::pipelines::job::Paths;
use crate::pipelines::roles::Reader;
use crate::pipelines::{Context, Predictions};
use crate::stop::Stop;
use crate::{Fault, Model, listen_address, out, parent};

/// Readers in other processes.
#[derive(Args)]
pub(super) struct ReadersApart {
    /// Read, parse and batch the rows in N reader processes: on this machine, or with --listen on any.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    readers: Option<u64>,
    /// Do not start readers, but wait at this address for readers that are started with --join.
    #[arg(long, value_name = "HOST:PORT", requires = "readers", value_parser = listen_address::parse)]
    listen: Option<SocketAddr>,
    /// The address at which readers reach this process, if it is not the --listen address.
    #[arg(long, value_name = "HOST[:PORT]", requires = "listen")]
    advertise: Option<String>,
    /// Be a reader of the `forebay predict` that listens at this address, which has the same --model, --data, --keep, --set and --readers.
    #[arg(long, value_name = "HOST:PORT", requires = "readers", conflicts_with_all = ["listen", "out", "replace"])]
    join: Option<String>,
    /// With --join, the number of this reader, from 0. Without it, as for `forebay role`.
    #[arg(long, env = "FOREBAY_RANK", value_name = "RANK")]
    rank: Option<u32>,
    /// With --listen or --join, the name of the run. Processes refuse processes of other runs.
    #[arg(long, value_name = "NAME", default_value = "predict")]
    run: String,
    #[command(flatten)]
    security: RunSecurityArgs,
    /// The `predict` that started this process: it ends with it.
    #[arg(long, hide = true)]
    parent: Option<u32>,
}

/// The arguments that all processes of a prediction share.
pub(super) struct ToPredict<'a> {
    pub(super) model: &'a str,
    pub(super) data: &'a Paths,
    /// Settings of the model's job.
    pub(super) settings: &'a [String],
    pub(super) keep: &'a [&'a str],
}

impl ToPredict<'_> {
    /// The rows.
    pub(super) fn input(&self, context: &Context) -> Input {
        Input::all(self.data.0.iter().map(Input::from)).with_stores(&context.stores)
    }
}

/// Predictions, and the readers that this process has started for them.
pub(super) struct Predicting<'m> {
    pub(super) predictions: Predictions<'m>,
    readers: Option<Readers>,
}

impl<'m> Predicting<'m> {
    /// All in this process.
    pub(super) fn alone(predictions: Predictions<'m>) -> Self {
        Self { predictions, readers: None }
    }

    /// Restarts readers that were killed or hang. If all readers have ended, the predictions end with a fault. Called several times a
    /// second.
    pub(super) fn look(&mut self) {
        let Some(readers) = &mut self.readers else { return };
        let looked = match self.predictions.ended() {
            false => readers.look(&self.predictions.silent_readers()),
            // The readers end, too, and a lost reader is not needed.
            true => readers.ended().map(|ended| ended.for_each(|rank| self.predictions.reader_has_ended(rank))),
        };
        if let Err(fault) = looked {
            self.predictions.fail(fault);
        }
    }

    /// Ends the readers.
    pub(super) fn end(self, stop: &Stop) -> Result<(), Fault> {
        drop(self.predictions);
        self.readers.map_or(Ok(()), |readers| readers.end(stop))
    }
}

impl ReadersApart {
    /// Whether this process is a reader.
    pub(super) fn is_reader(&self) -> bool {
        self.join.is_some()
    }

    /// Starts the predictions with `model`, in this process alone or with readers.
    pub(super) fn start<'m>(
        &self,
        asked: &ToPredict<'_>,
        model: &'m Model,
        logs: &Logs,
        context: &Context,
    ) -> Result<Predicting<'m>, Fault> {
        let &ToPredict { data, settings, keep, .. } = asked;
        let Some(count) = self.readers else {
            return Ok(Predicting::alone(model.predict(data, keep)?));
        };
        let plan = PredictionPlan::of_model(model, data, keep, count as usize)?;
        if let Some(listen) = self.listen {
            let process = self.process(Role::Trainer, listen, String::new());
            return Ok(Predicting::alone(model.predict_from_readers(&plan, ClusterProcess::new(process))?));
        }
        // Missing rows, and bad rows that would be written among the rows, are one error here, not one error of each reader.
        let input = asked.input(context);
        input.check_apart_from(&model.job.data.on_bad_row, out_folder::WRITE_TO)?;
        block_on(input.list())?;
        let mut readers = Readers::new(plan.most_silence(), logs)?;
        let address = readers.address().to_owned();
        let listen =
            address.parse::<SocketAddr>().map_err(|e| Fault::internal("no address of the own machine").because(e))?;
        let security = SecurityFiles { token_file: Some(readers.token_file()), ..SecurityFiles::default() };
        let process =
            ProcessConfig { security, supervised: true, ..self.process(Role::Trainer, listen, String::new()) };
        let predictions = model.predict_from_readers(&plan, ClusterProcess::new(process))?;
        let cores = format!("pipeline.cores={}", plan.cores_of_a_reader());
        for rank in 0..count {
            let mut arguments: Vec<String> = logs.arguments().map(str::to_owned).collect();
            arguments.push("predict".into());
            arguments.push(format!("--model={}", asked.model));
            arguments.extend(data.0.iter().map(|path| format!("--data={path}")));
            arguments.extend((!keep.is_empty()).then(|| format!("--keep={}", column_names::join(keep))));
            // The cores come after the settings of the user, which may say how many all processes have together.
            arguments.extend(settings.iter().chain([&cores]).map(|setting| format!("--set={setting}")));
            arguments.push(format!("--readers={count}"));
            arguments.push(format!("--join={address}"));
            arguments.push(format!("--rank={rank}"));
            arguments.push(format!("--run={}", self.run));
            arguments.push(format!("--token-file={}", readers.token_file().display()));
            arguments.push(format!("--parent={}", std::process::id()));
            readers.add(rank as usize, &arguments);
        }
        Ok(Predicting { predictions, readers: Some(readers) })
    }

    /// Reads for another process, until all rows are scored. `report`: prints the report at the end.
    pub(super) fn read(
        &self,
        asked: &ToPredict<'_>,
        report: bool,
        logs: &Logs,
        context: &Context,
    ) -> Result<Ended, Fault> {
        self.parent.map_or(Ok(()), parent::end_with)?;
        let coordinator = self.join.clone().unwrap_or_default();
        let stop = Stop::listen_and_say(logs.log_format, "finishes the windows that it has begun", exit::DRAINED)?;
        let count = self.readers.unwrap_or(1) as usize;
        let plan = PredictionPlan::of_folder(asked.model, asked.settings, asked.data, asked.keep, count, context)?;
        let mut process = self.process(Role::Reader, SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0), coordinator);
        process.rank = match self.rank {
            Some(rank) => rank,
            None => scheduled_rank(|name| std::env::var(name).ok())?.unwrap_or(0),
        };
        let process = {
            let stop = stop.clone();
            ClusterProcess::new(process).stopped_by(move || stop.asked())
        };
        stop.has_begun();
        // The program that reads the scores may close its pipe, even before this process has joined.
        let not_wanted = |fault: &Fault| fault.kind == FaultKind::Drained && !stop.asked();
        let ended = process.take_part(|process| {
            let read = Reader::start_to_predict(&plan, process, context)?.run(|| stop.asked(), |_| {});
            let read = match read {
                Err(fault) if not_wanted(&fault) => {
                    tracing::info!("{fault}");
                    return Ok(Ended::Drained);
                }
                read => read?,
            };
            if report {
                out::eprint_or_drop(&read);
            }
            let left_out = left_out_lines(&read.ledger.rejected).chain(read.ledger.unwritten_line());
            left_out.for_each(|line| logs.log_format.note(line));
            Ok(Ended::Done)
        });
        match exit::unless_over(ended) {
            Err(fault) if not_wanted(&fault) => {
                tracing::info!("{fault}");
                Ok(Ended::Drained)
            }
            ended => ended,
        }
    }

    fn process(&self, role: Role, listen: SocketAddr, coordinator: String) -> ProcessConfig {
        ProcessConfig {
            role,
            rank: 0,
            listen,
            advertise: self.advertise.clone(),
            coordinator,
            run: self.run.clone(),
            security: self.security.files(SecurityFiles::default()),
            resume: false,
            drains: false,
            has_checkpoints: false,
            supervised: self.parent.is_some(),
        }
    }
}
