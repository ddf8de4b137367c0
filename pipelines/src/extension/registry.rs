//! The registry of custom stages, sources and models, by the names that a job uses.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::error::ArrowError;
use forebay_actors::{Batch, Capacity, Fault, FaultKind, Flow, Place, Source, Stage, Topology};
use forebay_base::nearest;
use forebay_batches::{ExampleBatch, TrainBatch};
use forebay_connectors::{Format, Leases, ReadOptions, Rows};
use forebay_job::{Job, OwnStage};

use super::drop_rows::DropRows;
use super::noted_leases::NotedLeases;
use super::own_model::OwnModel;
use super::own_rows::OwnRows;
use super::source_progress::{SourceProgress, Watched};

/// Custom stages, sources and models by name. A job names them in `pipeline.after_read`, `pipeline.after_parse`,
/// `pipeline.after_batch`, `data.source` and `model.name`. One process, every role of a cluster, and evaluation use the same
/// registry.
///
/// What a stage does with a row must depend only on the row and the job's seed, after `batch` also on the rows of the batch. It must not
/// depend on earlier batches: if a reader is lost, another reader must make the same batches from the same windows. Each stage runs on its
/// own thread.
#[derive(Clone, Default)]
pub struct Registry {
    pub(crate) after_read: Stages<Rows>,
    pub(crate) after_parse: Stages<ExampleBatch>,
    pub(crate) after_batch: Stages<TrainBatch>,
    sources: BTreeMap<String, OwnSource>,
    models: BTreeMap<String, MakeModel>,
}

/// The request to a custom source: what to read, and how.
#[derive(Clone)]
pub struct SourceRequest {
    /// `data.train`, or the paths to evaluate; none if the job names none.
    pub paths: Vec<String>,
    /// Columns that the job uses.
    pub columns: Vec<String>,
    /// How to read: rows of a batch, epochs, seed, rows of a window.
    pub options: ReadOptions,
    /// In a cluster, the source reads only the windows that these leases grant.
    pub leases: Option<Arc<dyn Leases>>,
}

/// A source of rows that a flow can begin with.
pub(crate) struct Read {
    begin: Box<dyn FnOnce(Topology) -> Flow<Rows> + Send>,
    /// How far it has read.
    pub(crate) progress: SourceProgress,
    /// The format of the files; `None` for a custom source.
    pub(crate) format: Option<Format>,
}

impl Read {
    /// Begins a flow with the source, as the stage `read`.
    pub(crate) fn begin(self, topology: Topology) -> Flow<Rows> {
        (self.begin)(topology)
    }
}

/// Makes a source of a program with `make` when the flow starts. It has a thread of its own, because it may block.
pub(crate) fn read_own<S: Source<Out = Rows>>(make: impl FnOnce() -> S + Send + 'static) -> Read {
    read_from(Place::Own, Some(OwnRows::unnamed()), make)
}

/// Makes a source with `make` when the flow starts. `own`: it is one of a program.
pub(crate) fn read_from<S: Source<Out = Rows>>(
    place: Place,
    own: Option<OwnRows>,
    make: impl FnOnce() -> S + Send + 'static,
) -> Read {
    let progress = SourceProgress::default();
    let noted = progress.clone();
    let make = move || Watched { source: make(), progress: noted, own };
    Read { begin: Box::new(move |topology| topology.source("read", place, make)), progress, format: None }
}

#[derive(Clone)]
struct OwnSource {
    read: Arc<dyn Fn(SourceRequest) -> Read + Send + Sync>,
    takes_leases: bool,
}

/// Makes a job's model.
type MakeModel = Arc<dyn Fn(&Job) -> OwnModel + Send + Sync>;

/// Appends a stage to a flow.
type Insert<T> = Arc<dyn Fn(Flow<T>, &Job) -> Flow<T> + Send + Sync>;

/// The custom stages at one place of the graph, by name.
#[derive(Clone)]
pub(crate) struct Stages<T: Batch>(BTreeMap<String, Insert<T>>);

impl<T: Batch> Default for Stages<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl Registry {
    /// Adds a stage over record batches with raw values. It must drop rows with [`Rows::reject_where`] only, and send on every
    /// batch, even an empty one.
    #[must_use]
    pub fn after_read<S: Stage<In = Rows, Out = Rows>>(
        mut self,
        name: &str,
        make: impl Fn(&Job) -> S + Send + Sync + 'static,
    ) -> Self {
        self.after_read.add(name, make);
        self
    }

    /// Adds a stage after reading that drops the rows for which `mask` is true. A null keeps the row. The report counts the
    /// dropped rows under the stage's name. If `mask` panics, for instance because it indexes a column that the rows do not have, the run
    /// ends with a user fault that lists their columns.
    #[must_use]
    pub fn drop_rows(
        self,
        name: &str,
        mask: impl Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + Clone + Send + Sync + 'static,
    ) -> Self {
        self.after_read(name, move |_| DropRows::new(mask.clone()))
    }

    /// Adds a stage over parsed rows: labels, transformed dense features and keys. [`after_read`](Self::after_read) has the raw
    /// values. The stage must drop rows with [`ExampleBatch::retain_rows`] only, and send on every batch, even an empty one.
    #[must_use]
    pub fn after_parse<S: Stage<In = ExampleBatch, Out = ExampleBatch>>(
        mut self,
        name: &str,
        make: impl Fn(&Job) -> S + Send + Sync + 'static,
    ) -> Self {
        self.after_parse.add(name, make);
        self
    }

    /// Adds a stage over batches of their final size. It may change values, but must not add or drop rows or batches, because
    /// the end of the window has their counts.
    #[must_use]
    pub fn after_batch<S: Stage<In = TrainBatch, Out = TrainBatch>>(
        mut self,
        name: &str,
        make: impl Fn(&Job) -> S + Send + Sync + 'static,
    ) -> Self {
        self.after_batch.add(name, make);
        self
    }

    /// Adds a source for `data.source` in one process. It has a thread of its own, so its `next` may block; a drain waits for it then. A
    /// cluster needs a [`leased_source`](Self::leased_source).
    #[must_use]
    pub fn source<S: Source<Out = Rows>>(
        mut self,
        name: &str,
        make: impl Fn(SourceRequest) -> S + Send + Sync + 'static,
    ) -> Self {
        self.add_source(name, false, make);
        self
    }

    /// Adds a source for `data.source` that several processes can share. If [`SourceRequest::leases`] is `Some`, the source must
    /// read only the windows of these leases:
    ///
    /// - Window `w` of an epoch is exactly the rows `w * n .. (w + 1) * n` of the epoch, where `n` is `request.options.window_rows`
    ///   (`data.shuffle_rows`, rounded up to whole batches); only the last one is shorter. It has the same rows in the same order in every
    ///   process.
    /// - The source asks [`Leases::next`] for a lease, returns the rows of its windows in the order of their numbers, and asks for the next
    ///   lease, until there is none. The rows of one batch are of one window, with the number, the epoch and the term of the lease in
    ///   [`Rows::window`] and [`Rows::lineage`]. The last batch of a window has [`closes`](forebay_connectors::WindowMark::closes), even if
    ///   it has no rows.
    /// - Before it returns rows of a window, it asks [`Leases::wants`], and ends after the first `false`.
    ///
    /// A source that does otherwise ends the run with a user fault that names the window. `examples/own_program.rs` has such a source.
    #[must_use]
    pub fn leased_source<S: Source<Out = Rows>>(
        mut self,
        name: &str,
        make: impl Fn(SourceRequest) -> S + Send + Sync + 'static,
    ) -> Self {
        self.add_source(name, true, make);
        self
    }

    /// Adds a dense model for `model = { kind = "own", name = "..." }`. In a cluster each trainer makes it. If the ps processes
    /// hold the dense parameters, they also make it, on the CPU, for the initial values.
    #[must_use]
    pub fn own_model(mut self, name: &str, make: impl Fn(&Job) -> OwnModel + Send + Sync + 'static) -> Self {
        self.models.insert(name.to_owned(), Arc::new(make));
        self
    }

    /// Adds all that `more` has. A name that both have is then that of `more`.
    pub(crate) fn extend(&mut self, more: Self) {
        let Self { after_read, after_parse, after_batch, sources, models } = more;
        self.after_read.0.extend(after_read.0);
        self.after_parse.0.extend(after_parse.0);
        self.after_batch.0.extend(after_batch.0);
        self.sources.extend(sources);
        self.models.extend(models);
    }

    /// Fails if the job names a stage, source or model that the registry does not have.
    pub(crate) fn check(&self, job: &Job) -> Result<(), Fault> {
        self.check_for(job, true)
    }

    /// As [`check`](Self::check), to score rows with a model of this job: stages for training only are not needed.
    pub(crate) fn check_to_score(&self, job: &Job) -> Result<(), Fault> {
        self.check_for(job, false)
    }

    fn check_for(&self, job: &Job, training: bool) -> Result<(), Fault> {
        let pipeline = &job.pipeline;
        self.after_read.check("pipeline.after_read", &pipeline.after_read, training)?;
        self.after_parse.check("pipeline.after_parse", &pipeline.after_parse, training)?;
        self.after_batch.check("pipeline.after_batch", &pipeline.after_batch, training)?;
        if let Some(name) = &job.data.source {
            let source = find("data.source", "source", &self.sources, name)?;
            if !source.takes_leases && !job.placement.is_one_process() {
                return Err(Fault::user(format!(
                    "data.source `{name}` reads in one process, but [placement] names several: register it with \
                     leased_source, or train in one process"
                ))
                .kind(FaultKind::InvalidJob));
            }
        }
        match job.model.kind {
            forebay_job::ModelKind::Own => self.model(job).map(drop),
            _ => Ok(()),
        }
    }

    pub(crate) fn model(&self, job: &Job) -> Result<OwnModel, Fault> {
        let name = job.model.name.as_deref().unwrap_or_default();
        Ok(find("model.name", "model", &self.models, name)?(job))
    }

    pub(crate) fn read(&self, name: &str, request: SourceRequest) -> Result<Read, Fault> {
        Ok((find("data.source", "source", &self.sources, name)?.read)(request))
    }

    fn add_source<S: Source<Out = Rows>>(
        &mut self,
        name: &str,
        takes_leases: bool,
        make: impl Fn(SourceRequest) -> S + Send + Sync + 'static,
    ) {
        let (make, own) = (Arc::new(make), name.to_owned());
        let read = Arc::new(move |mut request: SourceRequest| {
            let make = Arc::clone(&make);
            let noted = |leases| Arc::new(NotedLeases::new(&own, leases, request.options.window_rows));
            let leases = request.leases.take().map(noted);
            request.leases = leases.clone().map(|leases| leases as Arc<dyn Leases>);
            read_from(Place::Own, Some(OwnRows::named(&own, leases)), move || make(request))
        });
        self.sources.insert(name.to_owned(), OwnSource { read, takes_leases });
    }
}

impl<T: Batch> Stages<T> {
    fn add<S: Stage<In = T, Out = T>>(&mut self, name: &str, make: impl Fn(&Job) -> S + Send + Sync + 'static) {
        let (stage, make) = (name.to_owned(), Arc::new(make));
        let insert = move |flow: Flow<T>, job: &Job| {
            let (make, job) = (Arc::clone(&make), job.clone());
            flow.stage(&stage, Place::Own, move || make(&job))
        };
        self.0.insert(name.to_owned(), Arc::new(insert));
    }

    fn check(&self, field: &str, names: &[OwnStage], training: bool) -> Result<(), Fault> {
        let mut needed = names.iter().filter(|own| training || !own.training_only);
        needed.try_for_each(|own| find(field, "stage", &self.0, &own.name).map(drop))
    }

    /// Appends the stages of a job to `flow`, each behind a link of `capacity`.
    pub(crate) fn wire(
        &self,
        mut flow: Flow<T>,
        names: &[OwnStage],
        capacity: Capacity,
        job: &Job,
        training: bool,
    ) -> Result<Flow<T>, Fault> {
        for own in names.iter().filter(|own| training || !own.training_only) {
            flow = find("[pipeline]", "stage", &self.0, &own.name)?(flow, job).link(capacity);
        }
        Ok(flow)
    }
}

fn find<'a, T>(field: &str, what: &str, all: &'a BTreeMap<String, T>, name: &str) -> Result<&'a T, Fault> {
    all.get(name).ok_or_else(|| {
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let hint = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "run the program that registers it".into(),
            None => format!("it has {}", known.join(", ")),
        };
        Fault::user(format!("{field} names the {what} `{name}`, which this program does not have: {hint}"))
            .kind(FaultKind::InvalidJob)
    })
}
