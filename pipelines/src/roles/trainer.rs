//! A trainer process: it receives batches from readers, or reads by itself, and trains with the tables of the ps processes.

use std::sync::Arc;

use forebay_actors::{Fault, FaultKind};
use forebay_batches::RowCounts;
use forebay_job::{DenseAt, Job};
use forebay_net::Handler;
use forebay_ps::{Trainer, start_table};
use tokio::sync::watch;

use super::away_rows::wait_for_rows;
use crate::checkpoint::{self, BatchOrder, CheckpointFolder, CheckpointManifest, Restored};
use crate::checkpointer::cut::Shards;
use crate::checkpointer::cut_client::CutLeader;
use crate::cluster::acknowledge::Acknowledger;
use crate::cluster::batches::handler::BatchHandler;
use crate::cluster::batches::receive_queue::{Credits, Order, ReceiveQueue};
use crate::cluster::dense::PsDenseStore;
use crate::cluster::departure::{Departure, Input};
use crate::cluster::lease_client::LeaseClient;
use crate::cluster::start_state::StartState;
use crate::cluster::{ClusterProcess, ClusterSession, RunPhase, RunStatus, ordered};
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;
use crate::dense_model::dense_store::DenseStore;
use crate::fault::model_fault;
use crate::order::batch_record::BatchRecord;
use crate::order::exact_order::ExactOrder;
use crate::order::look_ahead::LookAhead;
use crate::sampling::row_sample;
use crate::sources;
use crate::stages::participation::{Membership, Participation};
use crate::stages::rounds_end::RoundsEnd;
use crate::trainer_count::TrainerCount;
use crate::training::resources::Resources;
use crate::training::{Training, preflight, wiring};

/// Joins a run as a trainer and waits until all members have joined.
///
/// # Errors
/// The job does not fit together, the address cannot be listened on, or the coordinator refuses.
pub fn trainer(job: Job, process: &ClusterProcess, context: &Context) -> Result<Training, Fault> {
    job.check()?;
    context.registry.check(&job)?;
    let placement = &job.placement;
    let receive_queue = (placement.readers > 0)
        .then(|| Arc::new(ReceiveQueue::new(order(&job, process.config().rank), Credits::of(&job))));
    let handlers = receive_queue
        .iter()
        .map(|receive_queue| Arc::new(BatchHandler::new(Arc::clone(receive_queue))) as Arc<dyn Handler>)
        .collect();
    let (mut found, again) = (None, process.has_joined_before());
    let session = ClusterSession::join(context, process, &job, handlers, |start| {
        if let Some(StartState::Checkpoint(_, manifest)) = &start {
            manifest.check_job(&job)?;
        }
        let is_first = process.config().rank == 0;
        if let (true, Some(StartState::Checkpoint(_, manifest))) = (is_first, &start) {
            manifest.wait_for_model_disk(&job, context, &|| process.asked_to_shut_down())?;
        }
        if is_first && start.is_some() {
            // Checked here because the run starts only after the ps have loaded the checkpoint or the model.
            preflight::check_before_loading(&job, context, goes_on(process, start.as_ref(), None))?;
        }
        if is_first && again && start.is_none() {
            wait_for_rows(&job, context, &|| process.asked_to_shut_down())?;
        }
        let decided =
            if is_first { sampled_settings(&job, start.as_ref(), context)? } else { SampledSettings::default() };
        found = start;
        Ok(decided)
    })?;
    let status = match session.wait_until_started() {
        Ok(status) => status,
        // This trainer was asked to shut down, and has left: the others go on.
        Err(fault) if fault.kind == FaultKind::Drained && !has_failed(&session) => return Err(fault),
        Err(fault) => return Err(session.cannot_start(fault)),
    };
    match wire(job, process, context, receive_queue, &session, &status, found) {
        Ok(training) => Ok(training.session(session)),
        Err(fault) => Err(session.cannot_start(fault)),
    }
}

/// What the run begins with: the scales of the checkpoint or the model that it continues from, else what a sample of the rows decides.
fn sampled_settings(job: &Job, start: Option<&StartState>, context: &Context) -> Result<SampledSettings, Fault> {
    match start {
        Some(StartState::Checkpoint(_, manifest)) => {
            Ok(SampledSettings { scales: manifest.job.columns.scales_for(&job.columns), initial_bias: None })
        }
        Some(StartState::Model(predecessor)) => Ok(row_sample::decide_after(predecessor.columns(), job, context)),
        None => row_sample::decide(job, context).or_else(|fault| without_first_rows(job, fault)),
    }
}

/// What a run begins with if its first trainer cannot read a sample of the rows. If the job leaves no feature open, the sample decides the
/// bias alone.
///
/// # Errors
/// A fault because of `fault`, if the job leaves the scales of dense features open: without them, neither the readers nor this trainer
/// know how to read the features.
fn without_first_rows(job: &Job, fault: Fault) -> Result<SampledSettings, Fault> {
    if !job.columns.open_features().is_empty() {
        return Err(fault.context(
            "this trainer cannot read a sample of the rows at data.train, which decides the scales of dense features (transform = \"none\" \
             leaves a feature as it is)",
        ));
    }
    tracing::warn!(
        "this trainer cannot read a sample of the rows at data.train, so the model begins with a bias of 0, also if labels are rare \
         (train.initial_bias): {fault}"
    );
    Ok(SampledSettings::default())
}

/// Whether a disk that is full or cannot be reached must not end the run, which may have trained for long: it continues from a checkpoint,
/// or rows are read in it already; or `launch` has started this process, perhaps not for the first time. `launch` looked at the disk
/// before.
fn goes_on(process: &ClusterProcess, start: Option<&StartState>, status: Option<&RunStatus>) -> bool {
    let is_under_way = status.is_some_and(|status| status.data.is_some());
    process.config().supervised || is_under_way || matches!(start, Some(StartState::Checkpoint(..)))
}

fn has_failed(session: &ClusterSession) -> bool {
    matches!(session.status().phase, RunPhase::Failed(_))
}

fn wire(
    job: Job,
    process: &ClusterProcess,
    context: &Context,
    receive_queue: Option<Arc<ReceiveQueue>>,
    session: &ClusterSession,
    status: &RunStatus,
    found: Option<StartState>,
) -> Result<Training, Fault> {
    let rank = process.config().rank;
    let goes_on = goes_on(process, found.as_ref(), Some(status));
    if rank == 0 && found.is_none() {
        preflight::check_outputs(&job, context, goes_on)?;
    }
    let trainer = Trainer { rank, incarnation: session.member.id().incarnation };
    let mut resources = Resources::new(job, context.clone(), |host, job, config| {
        if job.placement.ps == 0 {
            let table = start_table(host, config.clone(), job.shards())?;
            if let Some(acknowledger) = Acknowledger::of(job, table.clone(), None) {
                session.io.spawn(acknowledger.follow(session.member.subscribe()));
            }
            return Ok(table);
        }
        session.table(job, status, config)
    })?;
    if rank > 0 {
        resources.evaluated_elsewhere(Arc::new(session.member.awaits_evaluations()));
    }
    let decided = session.sampled_settings()?;
    match &found {
        Some(_) => resources.set_scales(&decided.scales)?,
        None => resources.begin_with(&decided)?,
    }
    // The first trainer has checked them: here, or before it loaded a checkpoint or a model.
    (resources.outputs_are_checked, resources.goes_on) = (true, goes_on);
    resources.table = resources.table.of_trainer(trainer);
    resources.exact = ExactOrder::of(&resources.job, rank);
    resources.look_ahead = session.connect(LookAhead::of(&resources.job, &resources.table))?;
    let leases = LeaseClient::new(session.member.clone(), &resources.job);
    let input = match &receive_queue {
        Some(receive_queue) => Input::Queue(Arc::clone(receive_queue)),
        None => Input::Leases(leases.clone()),
    };
    let batches = input.record();
    resources.departure = Departure::of(&resources.job, rank, input);
    let dense: Option<Arc<dyn DenseStore>> = match resources.job.placement.dense() {
        DenseAt::Trainer => None,
        DenseAt::Ps => {
            let (peers, retry) = session.ps_peers(&resources.job, status)?;
            let dense_len = match &resources.model.spec {
                Some(spec) => spec.dense_len(),
                None => (resources.model.factory)().map_err(model_fault)?.flat_len(),
            };
            let first = resources.first_biases().into_iter().map(|(_, first)| first).collect();
            let store = PsDenseStore::connect(&peers, &resources.job, dense_len, first, trainer, retry);
            Some(Arc::new(session.connect(store)?))
        }
    };
    let rounds_end = resources.job.round().map(|_| RoundsEnd::new(session.member.subscribe()));
    let mut membership = membership(&resources.job, &status.counts, batches, dense, rounds_end);
    if resources.job.trainers_may_leave() {
        session.io.spawn(count_trainers(session.member.subscribe(), membership.steps.1.clone()));
    }
    let checkpoint = match found {
        Some(StartState::Checkpoint(folder, manifest)) => {
            membership.steps.0 = manifest.position.steps;
            if resources.job.trainers_may_leave() {
                // This trainer may join a run that is under way, in which others have taken steps.
                let before = manifest.position.batches.counts().batches;
                membership.steps.0 += status.counts.batches.saturating_sub(before);
            }
            Some((folder, *manifest))
        }
        Some(StartState::Model(predecessor)) => {
            resources.continue_from(&predecessor)?;
            membership.steps.0 += predecessor.steps();
            None
        }
        None => None,
    };
    resources.participation = Participation::member(membership);
    add_checkpoints(&mut resources, session, status, checkpoint)?;
    let pipeline = match receive_queue {
        Some(receive_queue) => wiring::receiving(&mut resources, receive_queue, &session.member),
        None => {
            if status.data.is_some() {
                wait_for_rows(&resources.job, context, &|| session.ends())?;
            }
            let read = sources::windows(&resources.job, context, Some(Arc::new(leases)))?;
            resources.format = read.format;
            wiring::training(&mut resources, read)?
        }
    };
    Ok(Training { resources, pipeline, on_progress: None })
}

/// Adds checkpoints to the run, if its job asks for them. The run continues from the checkpoint that was found.
fn add_checkpoints(
    resources: &mut Resources,
    session: &ClusterSession,
    status: &RunStatus,
    found: Option<(CheckpointFolder, CheckpointManifest)>,
) -> Result<(), Fault> {
    let Some(to) = resources.job.checkpoint.to.clone() else { return Ok(()) };
    let here = resources.job.placement.ps == 0;
    let shards = if here {
        Shards::Here(resources.table.clone())
    } else {
        Shards::InPs(session.ps_snapshots(&resources.job, status)?)
    };
    let restored = match found {
        Some((folder, manifest)) => {
            if here {
                checkpoint::load_rows(&folder, &manifest, &resources.table)?;
            }
            let restored = checkpoint::load_trainer(&folder, manifest, resources.job.placement.dense())?;
            // Only the first trainer, which reports the run, restores the metrics.
            Restored { metrics: restored.metrics.filter(|_| session.member.id().rank == 0), ..restored }
        }
        None => resources.at_start(),
    };
    let folder = CheckpointFolder::open(&to, &resources.context)?;
    resources.made = session.made.clone();
    let several = resources.job.placement.trainers > 1;
    let leader = several.then(|| CutLeader::new(session.member.clone()));
    resources.add_checkpoints(folder, status.start, restored, BatchOrder::Any, shards, leader)
}

/// Keeps the number of trainers that take part, until the member's last clone is dropped.
async fn count_trainers(mut status: watch::Receiver<RunStatus>, count: TrainerCount) {
    loop {
        count.set(status.borrow_and_update().trainers.iter().flatten().count() as u64);
        if status.changed().await.is_err() {
            return;
        }
    }
}

fn membership(
    job: &Job,
    counts: &RowCounts,
    batches: Arc<dyn BatchRecord>,
    dense: Option<Arc<dyn DenseStore>>,
    rounds_end: Option<RoundsEnd>,
) -> Membership {
    let (round, trainers) = (job.round(), job.placement.trainers as u64);
    // A synchronous step is one batch of each trainer. Otherwise each trainer counts its own steps for all trainers that take part.
    let steps = match round {
        Some(_) => (counts.batches / trainers, TrainerCount::default()),
        None => (counts.batches, TrainerCount::new(trainers)),
    };
    Membership { batches, dense, round, rounds_end, steps }
}

fn order(job: &Job, rank: u32) -> Order {
    match job.in_step() as u32 {
        1 if ordered(job) => Order::Data { rank: 0, of: 1 },
        1 => Order::Any,
        of => Order::Data { rank, of },
    }
}
