//! A training run, from a job and a source to a trained model.
//!
//! Comes in: a [`Job`], and rows from its files or from any [`Source`]. Goes out: a [`Trained`] model with its report.
//! [`RunningTraining::wait`] blocks until the run is over; the run itself has threads of its own.

use std::sync::{Arc, Mutex};

use forebay_actors::{Fault, Host, Pipeline, Plan, Report, Running, Source};
use forebay_connectors::{Leases, Rows};
use forebay_models::{ModelSpec, NamedTensor, RowPart};
use forebay_ps::{TableClient, TableConfig, start_table};

use crate::cluster::ClusterSession;
use crate::cluster::batches::receive_queue::ReceiveQueue;
use crate::cluster::member::Member;
use crate::job::{Job, LookupAt};
use crate::model::{Model, ModelFactory, checked_spec, factory, table_config};
use crate::model_folder;
use crate::participation::Participation;
use crate::progress::{Progress, Snapshot};
use crate::sources::{self, Visit};
use crate::stages::TrainedDense;
use crate::staleness::Staleness;
use crate::wiring;

/// A wired run that has not started.
pub struct Training {
    parts: Parts,
    pipeline: Pipeline,
}

/// What outlives the pipeline.
pub(crate) struct Parts {
    pub(crate) job: Job,
    pub(crate) spec: ModelSpec,
    pub(crate) config: TableConfig,
    pub(crate) host: Host,
    pub(crate) table: TableClient,
    pub(crate) dense: TrainedDense,
    pub(crate) progress: Progress,
    pub(crate) staleness: Staleness,
    pub(crate) own: Option<ModelFactory>,
    pub(crate) participation: Participation,
    /// This process's place in a run of several.
    pub(crate) session: Option<ClusterSession>,
}

/// A user's own dense model: what each key's row consists of, and what makes the model.
pub struct OwnModel {
    /// Parts of a row; the job's `[table]` says how they are initialised and updated.
    pub parts: Vec<RowPart>,
    /// Makes the model.
    pub factory: ModelFactory,
}

impl Training {
    /// Wires the run that the job describes, reading the rows at `data.train`.
    ///
    /// # Errors
    /// A user fault if the job does not fit together or its data is not there.
    pub fn new(job: Job) -> Result<Self, Fault> {
        Self::from_files(job, None)
    }

    /// The same with a dense model of the user's own in place of the job's `[model]`.
    pub fn with_model(job: Job, model: OwnModel) -> Result<Self, Fault> {
        Self::from_files(job, Some(model))
    }

    /// Wires a run over the rows of any source: a stream of record batches that another program holds, say.
    pub fn with_source<S: Source<Out = Rows>>(
        job: Job,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Result<Self, Fault> {
        let parts = Parts::new(job, None)?;
        Ok(Self { pipeline: wiring::training(&parts, make), parts })
    }

    fn from_files(job: Job, own: Option<OwnModel>) -> Result<Self, Fault> {
        Self::from_parts(Parts::new(job, own)?, None)
    }

    /// Reads the job's rows in this process: all of them, or those that `leases` gives.
    pub(crate) fn from_parts(parts: Parts, leases: Option<Arc<dyn Leases>>) -> Result<Self, Fault> {
        struct Wire(Parts);
        impl Visit for Wire {
            type Out = Training;
            fn visit<S: Source<Out = Rows>>(self, make: impl FnOnce() -> S + Send + 'static) -> Training {
                Training { pipeline: wiring::training(&self.0, make), parts: self.0 }
            }
        }
        let job = parts.job.clone();
        sources::open_windows(&job, job.train_path()?, job.in_step(), leases, Wire(parts))
    }

    /// Takes the batches that readers send.
    pub(crate) fn receiving(parts: Parts, receive_queue: Arc<ReceiveQueue>, member: &Member) -> Self {
        let pipeline = match parts.job.placement.lookup_at {
            LookupAt::Trainer => wiring::receiving(&parts, receive_queue, member),
            LookupAt::Reader => wiring::receiving_ready(&parts, receive_queue, member),
        };
        Self { pipeline, parts }
    }

    /// As a process of a run.
    pub(crate) fn session(mut self, session: ClusterSession) -> Self {
        self.parts.session = Some(session);
        self
    }

    /// The graph, with capacities, replicas and places.
    pub fn plan(&self) -> &Plan {
        self.pipeline.plan()
    }

    /// Starts it.
    pub fn start(self) -> Result<RunningTraining, Fault> {
        Ok(RunningTraining { running: self.pipeline.start()?, parts: self.parts })
    }

    /// Starts it and waits.
    ///
    /// # Errors
    /// The first fault. [`RunningTraining::wait`] gives the report with it.
    pub fn run(self) -> Result<Trained, Fault> {
        self.start()?.wait().map_err(|failed| failed.fault)
    }
}

impl Parts {
    fn new(job: Job, own: Option<OwnModel>) -> Result<Self, Fault> {
        let host = Host::start("ps")?;
        Self::over(job, own, host, |host, job, config| {
            start_table(host, config.clone(), job.table.shards)
                .map_err(|e| Fault::user("the table cannot be made").because(e))
        })
    }

    /// What trains over the table that `table` makes or reaches.
    pub(crate) fn over(
        job: Job,
        own: Option<OwnModel>,
        host: Host,
        table: impl FnOnce(&Host, &Job, &TableConfig) -> Result<TableClient, Fault>,
    ) -> Result<Self, Fault> {
        job.check()?;
        if let Some(folder) = &job.output.model {
            // Before hours of training, not after.
            model_folder::check_place(folder)?;
        }
        let spec = checked_spec(&job)?;
        let (parts, own) = own.map(|own| (own.parts, own.factory)).unzip();
        let config = table_config(&job, parts)?;
        let table = table(&host, &job, &config)?;
        Ok(Self {
            staleness: Staleness::new(job.train.staleness),
            job,
            spec,
            config,
            host,
            table,
            dense: Arc::new(Mutex::new(None)),
            progress: Progress::default(),
            own,
            participation: Participation::Alone,
            session: None,
        })
    }

    /// The dense parameters after the last push: those that the trainer's model computed with last, or what whoever keeps
    /// them has now.
    fn latest(&self, mut tensors: Vec<NamedTensor>) -> Result<Vec<NamedTensor>, Fault> {
        let Some(flat) = forebay_net::runtime().block_on(self.participation.pull_dense())? else { return Ok(tensors) };
        let mut rest = flat.as_slice();
        for tensor in &mut tensors {
            let Some((values, after)) = rest.split_at_checked(tensor.data.len()) else { break };
            tensor.data.copy_from_slice(values);
            rest = after;
        }
        Ok(tensors)
    }

    pub(crate) fn factory(&self) -> ModelFactory {
        factory(&self.job, &self.spec, self.own.as_ref())
    }
}

/// A run under way.
pub struct RunningTraining {
    running: Running,
    parts: Parts,
}

/// A run that ended well, drained or at the end of its rows.
pub struct Trained {
    /// The model.
    pub model: Model,
    /// Meters of every stage and link, and the ledger.
    pub report: Report,
    /// Rows, steps, running logloss and AUC at the end.
    pub progress: Snapshot,
    /// The most batches that were under way, not yet applied, when another was looked up.
    pub staleness_observed: u64,
    /// This process's place in a run of several; ends with [`ClusterSession::over`] or [`ClusterSession::leave`].
    pub session: Option<ClusterSession>,
}

/// A run that did not.
#[derive(Debug)]
pub struct Failed {
    /// The root cause.
    pub fault: Fault,
    /// How far it came.
    pub report: Report,
}

impl RunningTraining {
    /// Rows, logloss and AUC of late.
    pub fn progress(&self) -> Snapshot {
        self.parts.progress.snapshot()
    }

    /// Meters as they stand.
    pub fn report(&self) -> Report {
        self.running.snapshot()
    }

    /// Whether the run is over: [`wait`](Self::wait) will not block.
    pub fn ended(&self) -> bool {
        self.running.ended()
    }

    /// Ends the run at the next batch of the source; all that was read is still trained on.
    ///
    /// In a run of several processes the readers take no more, and what they hold is trained on.
    pub fn drain(&self) {
        match &self.parts.session {
            Some(session) => session.drain(),
            None => self.running.drain(),
        }
    }

    /// Stops at once; what is under way is lost.
    pub fn kill(&self, fault: Fault) {
        self.running.kill(fault);
    }

    /// Blocks until the run is over.
    pub fn wait(self) -> Result<Trained, Box<Failed>> {
        let Self { running, parts } = self;
        let outcome = running.wait();
        let dense = parts.dense.lock().expect("no holder of this lock panics").take();
        // What other trainers and readers have in hand is part of the model.
        let others = || parts.session.as_ref().map_or(Ok(()), ClusterSession::wait_until_finished);
        let result = outcome.result.and_then(|()| others()).and_then(|()| match dense {
            Some(dense) => parts.latest(dense),
            None => Err(Fault::internal("the train stage left no parameters")),
        });
        match result {
            Ok(dense) => Ok(Trained {
                report: outcome.report,
                progress: parts.progress.snapshot(),
                staleness_observed: parts.staleness.observed(),
                session: parts.session,
                model: Model {
                    job: parts.job,
                    spec: parts.spec,
                    config: parts.config,
                    host: parts.host,
                    table: parts.table,
                    dense,
                    factory: parts.own,
                },
            }),
            Err(fault) => {
                if let Some(session) = &parts.session {
                    session.fail(&fault);
                }
                Err(Box::new(Failed { fault, report: outcome.report }))
            }
        }
    }
}
