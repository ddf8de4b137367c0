//! Wires the stages of every role, in the order of the graph, with their capacities and threads.
//!
//! [`feed`] makes batches, and [`Compute`] trains on them. One process wires both, with the look-up between them. In a cluster,
//! readers ship the batches to trainers.

use std::sync::Arc;

use arrow::array::RecordBatch;
use forebay_actors::{Fault, Flow, Pipeline, Place, Replicas, Source, Topology};
use forebay_batches::wire::columns::Layout;
use forebay_batches::{
    Assemble, BatchPlan, Batcher, GradBatch, LabelsSeen, LimitWarning, MOST_UNDER_WAY, Parse, ReadyBatch, ScaleWarning,
    Staleness, TrainBatch, missing_keys,
};
use forebay_connectors::Rows;
use forebay_job::{BatchStage, Job, LookupAt, ModelKind, TowerLoss, Transfers};
use forebay_models::{ModelSpec, TowerSide, has_optimizer};
use forebay_ps::TableClient;
use forebay_ps::dense::FirstValue;
use tokio::sync::{mpsc, oneshot};

use super::resources::Resources;
use crate::checkpoint::ModelState;
use crate::cluster::PredictionPlan;
use crate::cluster::batches::receive_queue::ReceiveQueue;
use crate::cluster::batches::send_queue::SendQueue;
use crate::cluster::lease_client::LeaseClient;
use crate::cluster::member::Member;
use crate::columns::expected_types::ExpectedTypes;
use crate::columns::run_types::RunTypes;
use crate::columns::score_columns::ScoreColumns;
use crate::columns::trained_types::{TrainedTypes, job_as_trained};
use crate::context::Context;
use crate::dense_model::dense_threads::DenseThreads;
use crate::dense_model::job_model::JobModel;
use crate::extension::own_model::ModelFactory;
use crate::extension::registry::{Read, Registry, read_own};
use crate::metrics::progress::Progress;
use crate::metrics::unknown_values::{UnknownValues, WarnedSlots};
use crate::model::Model;
use crate::sources;
use crate::stages::participation::Participation;
use crate::stages::{
    Download, Embed, Evaluate, Lookup, ModelMaker, Predict, Push, RankedRows, Receive, Refresh, Scorer, Ship,
    StateOutput, Train, TrainOnDevice, Upload,
};
use crate::trainer_count::TrainerCount;
use crate::window_rows::{FORWARD_ROWS, window_rows};

/// `source -8→ parse -8→ batch -4→ lookup -2→ train -2→ push`. `lookup` and `push` call the shards. With transfers apart,
/// `train` is `upload -1→ train -1→ download`.
pub(crate) fn training(resources: &mut Resources, read: Read) -> Result<Pipeline, Fault> {
    let (job, topology) = (&resources.job, learning(resources));
    let participation = resources.participation.clone();
    let plan = BatchPlan { mark_window_ends: !participation.is_alone(), ..training_plan(job) };
    let batcher = Batcher::new(plan).ask_before_windows(move |epoch, mark| participation.window_begins(epoch, mark));
    let purpose = Purpose::Training(resources.types.clone(), resources.progress.labels());
    Ok(learn(batches(topology, job, &resources.context.registry, batcher, purpose, read)?, resources))
}

/// The beginning of a pipeline that trains.
fn learning(resources: &Resources) -> Topology {
    Topology::new("train").attach(&resources.host).observed_by(resources.context.observer.clone())
}

/// A reader: `source -8→ parse -8→ batch -4→ ship`. With the look-up at the reader, which needs `table`:
/// `source -8→ parse -8→ batch -4→ lookup -2→ ship`.
pub(crate) fn reading(
    job: &Job,
    context: &Context,
    send_queue: Arc<SendQueue>,
    leases: LeaseClient,
    table: Option<(TableClient, Staleness)>,
    read: Read,
) -> Result<Pipeline, Fault> {
    let (progress, lost) = (Arc::clone(leases.progress()), leases.lost().clone());
    let plan = BatchPlan { mark_window_ends: true, ..training_plan(job) };
    let batcher = Batcher::new(plan).ask_before_windows(move |epoch, mark| leases.begin_window(epoch, mark));
    let topology = Topology::new("read").observed_by(context.observer.clone());
    let purpose = Purpose::Training(RunTypes::default(), LabelsSeen::default());
    let flow = batches(topology, job, &context.registry, batcher, purpose, read)?;
    let layout = Layout { weighted: job.columns.has_value_weights(), kept: false };
    let Some((table, staleness)) = table else {
        let trainers = job.in_step() as u32;
        return Ok(flow.sink("ship", Place::Shared, move || {
            Ship::<TrainBatch>::new(send_queue, progress, lost, trainers, layout)
        }));
    };
    let replicas = requests_under_way(job, &staleness);
    Ok(looked_up(flow, Lookup::for_training(&table, &staleness), replicas).link(job.pipeline.links.to_train()).sink(
        "ship",
        Place::Shared,
        move || Ship::<ReadyBatch>::new(send_queue, progress, lost, 1, layout),
    ))
}

/// A reader of a prediction: `source -8→ parse -8→ batch -4→ ship`.
pub(crate) fn reading_to_predict(
    plan: &PredictionPlan,
    context: &Context,
    send_queue: Arc<SendQueue>,
    leases: LeaseClient,
    read: Read,
) -> Result<Pipeline, Fault> {
    let PredictionPlan { job, keep, types } = plan;
    let (progress, lost) = (Arc::clone(leases.progress()), leases.lost().clone());
    let plan = BatchPlan { mark_window_ends: true, ..forward_plan(job) };
    let batcher = Batcher::new(plan).ask_before_windows(move |epoch, mark| leases.begin_window(epoch, mark));
    let topology = Topology::new("read").observed_by(context.observer.clone());
    let purpose = Purpose::Prediction(keep.clone(), types.clone());
    let layout = Layout { weighted: job.columns.has_value_weights(), kept: true };
    let flow = batches(topology, job, &context.registry, batcher, purpose, read)?;
    Ok(flow.sink("ship", Place::Shared, move || Ship::<TrainBatch>::new(send_queue, progress, lost, 1, layout)))
}

/// A trainer: `receive -4→ lookup -2→ train -2→ push`. With the look-up at the reader: `receive -2→ train -2→ push`.
pub(crate) fn receiving(resources: &mut Resources, receive_queue: Arc<ReceiveQueue>, member: &Member) -> Pipeline {
    let (status, links) = (member.subscribe(), &resources.job.pipeline.links);
    let topology = learning(resources);
    if resources.job.placement.lookup_at == LookupAt::Trainer {
        let participation = resources.participation.clone();
        let receive = move || Receive::<TrainBatch>::new(receive_queue, status, &participation);
        return learn(topology.source("receive", Place::Shared, receive).link(links.to_lookup()), resources);
    }
    let participation = resources.participation.clone();
    let receive = move || Receive::<ReadyBatch>::new(receive_queue, status, &participation);
    let flow = topology.source("receive", Place::Shared, receive).link(links.to_train());
    let flow = match resources.participation.dense().cloned() {
        Some(dense) => {
            let replicas = Replicas::ordered(requests_under_way(&resources.job, &resources.staleness));
            let participation = resources.participation.clone();
            let refresh = move |_| Refresh::new(Arc::clone(&dense), participation.clone());
            flow.replicated("refresh", Place::Shared, replicas, refresh).link(links.to_train())
        }
        None => flow,
    };
    compute(flow, resources)
}

/// `source -8→ parse -8→ batch -4→ lookup -2→ evaluate`.
/// `warned`: the slots that the run has warned of.
pub(crate) fn evaluation(model: &Model, read: Read, warned: WarnedSlots) -> Result<Pipeline, Fault> {
    let (scorer, options) = (scorer(model, warned), model.job.evaluation.clone());
    let labels = model.job.columns.label.names();
    let topology = Topology::new("evaluate");
    let flow = forward(model, &model.job, topology, Purpose::Evaluation(options.columns(), model.types()), read)?;
    let ranked = RankedRows::of(model.model.spec.as_ref(), &options);
    let only_order = !model.job.scores_are_probabilities();
    let evaluate = move || {
        let evaluate = Evaluate::new(scorer()).with_labels(labels).with_options(options);
        evaluate.ranking(ranked).of_scores_that_only_order(only_order)
    };
    Ok(flow.sink("evaluate", Place::Own, evaluate))
}

/// `source -8→ parse -8→ batch -4→ lookup -2→ predict`. The scores of each batch go to `scores`, with the columns `keep`.
pub(crate) fn prediction(
    model: &Model,
    read: Read,
    keep: Vec<String>,
    scores: mpsc::Sender<RecordBatch>,
) -> Result<Pipeline, Fault> {
    let (scorer, columns) = (scorer(model, WarnedSlots::default()), ScoreColumns::of(&model.job));
    let flow = forward(model, &model.job, Topology::new("predict"), Purpose::Prediction(keep, model.types()), read)?;
    Ok(flow.sink("predict", Place::Own, move || Predict::new(scorer(), scores).with_columns(columns)))
}

/// The process that scores, with readers apart: `receive -4→ lookup -2→ predict`. The scores of each batch go to `scores`.
pub(crate) fn prediction_of_received(
    model: &Model,
    keep: Vec<String>,
    receive_queue: Arc<ReceiveQueue>,
    member: &Member,
    scores: mpsc::Sender<RecordBatch>,
) -> Pipeline {
    let (scorer, columns) = (scorer(model, WarnedSlots::default()), ScoreColumns::of(&model.job));
    let (status, links) = (member.subscribe(), &model.job.pipeline.links);
    let (lookup, received) = (Lookup::read_only(&model.table), Arc::clone(&receive_queue));
    let receive = move || Receive::<TrainBatch>::new(receive_queue, status, &Participation::default());
    let topology = Topology::new("predict").attach(&model.host);
    let flow = topology.source("receive", Place::Shared, receive).link(links.to_lookup());
    flow.stage("lookup", Place::Shared, move || lookup).link(links.to_train()).sink("predict", Place::Own, move || {
        Predict::new(scorer(), scores).with_columns(columns).of_received(keep, received)
    })
}

/// `source -8→ parse -8→ batch -4→ lookup -2→ embed`. `job` has the columns of one tower only. The vectors of each batch go to `vectors`,
/// with the columns `keep`.
pub(crate) fn embedding(
    model: &Model,
    job: &Job,
    (spec, side): (&ModelSpec, TowerSide),
    read: Read,
    keep: Vec<String>,
    vectors: mpsc::Sender<RecordBatch>,
) -> Result<Pipeline, Fault> {
    let (maker, spec) = (trained_model(model), spec.clone());
    let flow = forward(model, job, Topology::new("embed"), Purpose::Prediction(keep, model.types()), read)?;
    Ok(flow.sink("embed", Place::Own, move || Embed::new(maker, &spec, side, vectors)))
}

/// Makes the dense part of a trained model.
fn trained_model(model: &Model) -> ModelMaker {
    Box::new(model.model.with_parameters(model.dense.clone()))
}

/// Returns a function that makes the scorer of a trained model, on the thread that scores. The scorer warns of slots whose values the model
/// does not know, unless they are in `warned`.
fn scorer(model: &Model, warned: WarnedSlots) -> impl FnOnce() -> Scorer + Send + use<> {
    let (maker, correction) = (trained_model(model), model.job.data.logit_correction());
    let (unknown, name) = (UnknownValues::of(&model.job, warned), model.model.describe.clone());
    move || Scorer::new(maker, correction).looking_for(unknown).of(name)
}

/// `source -8→ parse -8→ batch -4→ lookup -2→`, in the order of the rows, on the table as it is.
fn forward(
    model: &Model,
    job: &Job,
    topology: Topology,
    purpose: Purpose,
    read: Read,
) -> Result<Flow<ReadyBatch>, Fault> {
    let lookup = Lookup::read_only(&model.table);
    let job = &job_as_trained(job, model.training.as_ref());
    let batcher = Batcher::new(forward_plan(job));
    let batches = batches(topology.attach(&model.host), job, &model.context.registry, batcher, purpose, read)?;
    Ok(batches.stage("lookup", Place::Shared, move || lookup).link(job.pipeline.links.to_train()))
}

/// The batches of evaluation and prediction: all rows, in their order.
fn forward_plan(job: &Job) -> BatchPlan {
    BatchPlan { rows: FORWARD_ROWS, window: 0, drop_last: false, missing: Vec::new(), ..training_plan(job) }
}

/// What batches are made for.
enum Purpose {
    /// Training: the rows determine the types of the run, and their labels are counted.
    Training(RunTypes, LabelsSeen),
    /// Evaluation of a model that was trained on these types. These columns travel with the rows.
    Evaluation(Vec<String>, TrainedTypes),
    /// Prediction of a model that was trained on these types. Every row travels, with these columns and without a label.
    Prediction(Vec<String>, TrainedTypes),
}

/// Makes batches of the rows at `data.train`: `source -8→ parse -8→ batch -4→`, with the job's custom stages between them.
///
/// # Errors
/// A user fault if the rows are missing, or the context's registry lacks a part that the job names.
pub fn feed(topology: Topology, job: &Job, context: &Context) -> Result<Flow<TrainBatch>, Fault> {
    let (batcher, purpose) =
        (Batcher::new(training_plan(job)), Purpose::Training(RunTypes::default(), LabelsSeen::default()));
    batches(topology, job, &context.registry, batcher, purpose, sources::windows(job, context, None)?)
}

/// Like [`feed`], with any source of rows.
///
/// # Errors
/// A user fault if `registry` lacks a stage that the job names.
pub fn feed_from<S: Source<Out = Rows>>(
    topology: Topology,
    job: &Job,
    registry: &Registry,
    source: impl FnOnce() -> S + Send + 'static,
) -> Result<Flow<TrainBatch>, Fault> {
    let (batcher, purpose) =
        (Batcher::new(training_plan(job)), Purpose::Training(RunTypes::default(), LabelsSeen::default()));
    batches(topology, job, registry, batcher, purpose, read_own(source))
}

fn batches(
    topology: Topology,
    job: &Job,
    registry: &Registry,
    batcher: Batcher,
    purpose: Purpose,
    read: Read,
) -> Result<Flow<TrainBatch>, Fault> {
    let training = matches!(purpose, Purpose::Training(..));
    let (own, links) = (&job.pipeline, &job.pipeline.links);
    let (expected, columns) = match &purpose {
        Purpose::Training(types, _) => (ExpectedTypes::Run(types.clone(), Arc::new(job.clone())), job.columns.clone()),
        Purpose::Evaluation(_, types) | Purpose::Prediction(_, types) => {
            let job = Arc::new(types.pinned(job));
            let columns = job.columns.clone();
            (ExpectedTypes::Model(types.clone(), job), columns)
        }
    };
    let (seed, on_bad_row) = (job.seed, job.data.on_bad_row.clone());
    let negatives = if training { job.data.negatives } else { 1.0 };
    let after_click = job.model.kind == ModelKind::Esmm;
    let single = job.single_slots();
    // A stage behind `parse` may need the keys of all rows.
    let late = job.pipeline.after_parse.is_empty();
    let (scale_warning, limit_warning) = (ScaleWarning::default(), LimitWarning::default());
    let parse = move |_replica| {
        let expected = expected.clone();
        let parse = Parse::new(&columns, seed, on_bad_row.clone()).keep_negatives(negatives, seed);
        let parse = parse.conversions_after_clicks(after_click).one_value_in(single.clone());
        let parse = parse.warning_of_limits(limit_warning.clone());
        let parse = parse.checking_types(move |schema| expected.check(schema)).hashing_late(late);
        match &purpose {
            Purpose::Training(_, labels) => {
                parse.checking_key_spaces().noting(labels.clone()).warning_of_scales(scale_warning.clone())
            }
            Purpose::Evaluation(columns, _) => parse.for_evaluation(columns.clone()),
            Purpose::Prediction(keep, _) => parse.for_prediction(keep.clone()),
        }
    };
    let rows = read.begin(topology).link(links.to_parse());
    let rows = registry.after_read.wire(rows, &own.after_read, links.to_parse(), job, training)?;
    let replicas = Replicas::ordered(job.parse_replicas());
    let examples = rows.replicated("parse", Place::Own, replicas, parse).link(links.to_batch());
    let examples = registry.after_parse.wire(examples, &own.after_parse, links.to_batch(), job, training)?;
    let batches = match job.batch_stage() {
        BatchStage::Plain => examples.stage("batch", Place::Own, move || batcher),
        BatchStage::Replicated(n) => {
            let (cut, plan) = batcher.split();
            let parts = examples.stage("cut", Place::Shared, move || cut).link(PARTS_WAITING);
            parts.replicated("batch", Place::Own, Replicas::ordered(n), move |_| Assemble::new(&plan))
        }
    };
    let batches = batches.link(links.to_lookup());
    registry.after_batch.wire(batches, &own.after_batch, links.to_lookup(), job, training)
}

/// Parts of windows that wait for a free replica of `batch`. Each holds the rows that are shuffled together.
const PARTS_WAITING: usize = 1;

/// Looks up, trains on and pushes the batches of `flow`. Takes the state that the model continues from out of `resources`: a copy there
/// would live as long as the run.
pub(crate) fn learn(flow: Flow<TrainBatch>, resources: &mut Resources) -> Pipeline {
    let replicas = replicas_for_requests(resources);
    let lookup = Lookup::for_training(&resources.table, &resources.staleness)
        .participation(participation(resources))
        .in_order(resources.exact.clone())
        .in_step(resources.step_order.clone())
        .ahead(resources.look_ahead.clone())
        .evaluated(resources.evaluations.clone());
    compute(looked_up(flow, lookup, replicas).link(resources.job.pipeline.links.to_train()), resources)
}

/// How the stages take part, with the gate of evaluations.
fn participation(resources: &Resources) -> Participation {
    let gate = resources.evaluations.as_ref().map(|evaluations| evaluations.gate());
    resources.participation.clone().with_evaluations(gate)
}

/// Replicas of `lookup` and of `push`: one for each ticket, which hides the round trip to the ps. Shards in this process need no
/// round trip, so one replica is enough and has the caches to itself. In an exact order there is one request at a time.
fn requests_under_way(job: &Job, staleness: &Staleness) -> usize {
    if job.placement.ps == 0 || job.train.staleness.exactly { 1 } else { (staleness.bound() + 1).min(MOST_UNDER_WAY) }
}

/// Replicas of `lookup` and of `push` in a trainer. With look-ahead one for each ticket: they also wait for gradients.
fn replicas_for_requests(resources: &Resources) -> usize {
    match &resources.look_ahead {
        Some(look_ahead) => look_ahead.tickets().bound() + 1,
        None => requests_under_way(&resources.job, &resources.staleness),
    }
}

fn looked_up(flow: Flow<TrainBatch>, lookup: Lookup, replicas: usize) -> Flow<ReadyBatch> {
    match replicas {
        1 => flow.stage("lookup", Place::Shared, move || lookup),
        n => flow.replicated("lookup", Place::Shared, Replicas::ordered(n), move |_| lookup.clone()),
    }
}

fn compute(flow: Flow<ReadyBatch>, resources: &mut Resources) -> Pipeline {
    let (participation, job) = (participation(resources), &resources.job);
    let compute = Compute {
        progress: resources.progress.clone(),
        steps: participation.steps(),
        restored: resources.restored.take(),
        first_biases: resources.first_biases(),
        // With the dense parameters in the ps, their optimizer is there, too: the trainer's model has no state of its own.
        state_output: match participation.dense() {
            Some(_) => StateOutput { evaluations: resources.evaluations.clone(), ..StateOutput::default() },
            None => StateOutput {
                cut_point: participation.cut_point().cloned(),
                evaluations: resources.evaluations.clone(),
                leaves_optimizer: job.output.state,
            },
        },
        threads: resources.dense_threads.clone(),
        ..Compute::new(job, &resources.model)
    };
    let push = Push::new(&resources.table)
        .participation(participation)
        .in_order(resources.exact.clone())
        .in_step(resources.step_order.clone())
        .ahead(resources.look_ahead.clone());
    let flow = compute.wire(flow).link(job.pipeline.links.to_push());
    match replicas_for_requests(resources) {
        1 => flow.sink("push", Place::Shared, move || push),
        n => flow.replicated_sink("push", Place::Shared, n, move |_| push.clone()),
    }
}

/// The part of a pipeline that computes gradients.
pub struct Compute {
    describe: String,
    factory: ModelFactory,
    transfers: Transfers,
    /// Receives an update after every step.
    pub progress: Progress,
    /// Steps taken before this run started, and by how much each step of this trainer raises that number.
    steps: (u64, TrainerCount),
    /// The state that the model continues from. Without any of an optimizer, the optimizer starts without state.
    restored: Option<ModelState>,
    /// What the biases of a new model begin with.
    first_biases: Vec<(String, FirstValue)>,
    state_output: StateOutput,
    threads: DenseThreads,
}

impl Compute {
    /// Computes with the model of a job.
    pub fn new(job: &Job, model: &JobModel) -> Self {
        Self {
            describe: model.describe.clone(),
            factory: Arc::clone(&model.factory),
            // A loss of the whole batch is computed in one piece.
            transfers: match job.model.loss {
                TowerLoss::Logloss => job.train.transfers(),
                TowerLoss::InBatchSoftmax => Transfers::Inline,
            },
            progress: Progress::default(),
            steps: Default::default(),
            restored: None,
            first_biases: Vec::new(),
            state_output: StateOutput::default(),
            threads: DenseThreads::default(),
        }
    }

    /// Appends `train`, or with transfers apart `upload -1→ train -1→ download`. A capacity of one is enough: while `download`
    /// waits for a batch, the next one is in the device's queue, and `upload` packs the one after it.
    pub fn wire(self, flow: Flow<ReadyBatch>) -> Flow<GradBatch> {
        let Self { describe, factory, transfers, progress, steps, restored, first_biases, state_output, threads } =
            self;
        let maker: ModelMaker = Box::new(move || {
            let mut model = factory()?;
            match restored {
                Some(state) if has_optimizer(&state) => model.restore(state)?,
                Some(parameters) => model.load(&parameters)?,
                None if first_biases.is_empty() => {}
                None => {
                    let mut parameters = model.parameters();
                    for (name, FirstValue { value, .. }) in &first_biases {
                        let bias = parameters.iter_mut().filter(|tensor| tensor.name == *name);
                        bias.for_each(|tensor| tensor.data.fill(*value));
                    }
                    model.load(&parameters)?;
                }
            }
            Ok(model)
        });
        if transfers == Transfers::Inline {
            return flow.stage("train", Place::Own, move || {
                let train = Train::new(describe, maker, progress).after(steps);
                train.with_state_output(state_output).on_threads(threads)
            });
        }
        let (uploader, upload) = oneshot::channel();
        flow.stage("upload", Place::Own, move || Upload::new(upload))
            .link(1)
            .stage("train", Place::Own, move || {
                TrainOnDevice::new(describe, maker, uploader).with_state_output(state_output)
            })
            .link(1)
            .stage("download", Place::Own, move || Download::new(progress).after(steps))
    }
}

/// The batch plan of training, the same in every process. A process that reads with leases also marks the ends of windows: the rows of a
/// window that is not closed are left out there, because it is leased again.
fn training_plan(job: &Job) -> BatchPlan {
    BatchPlan {
        rows: job.train.batch_rows,
        window: if job.data.shuffle_rows == 0 { 0 } else { window_rows(job, job.in_step()) },
        seed: job.seed,
        drop_last: job.train.drop_last,
        mark_window_ends: false,
        key_spaces: job.columns.key_spaces(),
        missing: missing_keys(&job.columns, job.seed),
    }
}
