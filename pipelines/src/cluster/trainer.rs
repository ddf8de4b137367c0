//! A trainer: takes batches from readers (or reads by itself), and trains over the shards of the ps processes.
//!
//! Comes in: a job and a [`ProcessConfig`]. Goes out: a [`Training`] that is run like any other. Blocks until all processes are there.

use std::sync::Arc;

use forebay_actors::{Fault, Host};
use forebay_net::{Handler, runtime};
use forebay_ps::{Trainer, start_table};

use super::acknowledge::Acknowledger;
use super::batches::handler::BatchHandler;
use super::batches::receive_queue::{Credits, Order, ReceiveQueue};
use super::dense::PsDenseStore;
use super::member::LeaseClient;
use super::messages::RunStatus;
use super::ordered;
use super::session::{ClusterSession, ProcessConfig};
use crate::dense::Shared;
use crate::flow::BatchId;
use crate::job::{DenseAt, Job};
use crate::training::{Parts, Training};

/// Joins a run as a trainer and waits until all are there.
///
/// # Errors
/// The job does not fit together, the address cannot be listened on, or the coordinator refuses.
pub fn trainer(job: Job, process: &ProcessConfig) -> Result<Training, Fault> {
    job.check()?;
    let placement = &job.placement;
    let receive_queue =
        (placement.readers > 0).then(|| Arc::new(ReceiveQueue::new(order(&job, process.rank), credits(&job))));
    let parts = receive_queue
        .iter()
        .map(|receive_queue| Arc::new(BatchHandler::new(Arc::clone(receive_queue))) as Arc<dyn Handler>)
        .collect();
    let session = ClusterSession::join(process, &job, parts)?;
    match wire(job, process.rank, receive_queue, &session) {
        Ok(training) => Ok(training.session(session)),
        Err(fault) => {
            session.fail(&fault);
            Err(fault)
        }
    }
}

fn wire(
    job: Job,
    rank: u32,
    receive_queue: Option<Arc<ReceiveQueue>>,
    session: &ClusterSession,
) -> Result<Training, Fault> {
    let status = session.wait_until_started()?;
    let trainer = Trainer { rank, incarnation: session.member.id().incarnation };
    let host = Host::start("ps")?;
    let mut parts = Parts::over(job, None, host, |host, job, config| {
        if job.placement.ps == 0 {
            let table = start_table(host, config.clone(), job.table.shards)?;
            runtime().spawn(Acknowledger::new(table.clone(), None).follow(session.member.subscribe()));
            return Ok(table);
        }
        session.table(job, &status, config)
    })?;
    parts.table = parts.table.of_trainer(trainer);
    let leases = LeaseClient::new(session.member.clone());
    parts.shared = shared(&parts.job, &status, &receive_queue, &leases);
    if parts.job.placement.dense() == DenseAt::Ps {
        let (peers, retry) = session.ps_peers(&parts.job, &status)?;
        let store = runtime().block_on(PsDenseStore::connect(&peers, &parts.job, &parts.spec, trainer, retry))?;
        parts.shared.dense = Some(Arc::new(store));
    }
    match receive_queue {
        Some(receive_queue) => Ok(Training::receiving(parts, receive_queue, &session.member)),
        None => Training::from_parts(parts, Some(Arc::new(leases))),
    }
}

/// What the stages tell others.
fn shared(job: &Job, status: &RunStatus, receive_queue: &Option<Arc<ReceiveQueue>>, leases: &LeaseClient) -> Shared {
    // In step, a step is a batch of each trainer; else each of ours counts for all of theirs.
    let (in_step, trainers) = (job.round(), job.placement.trainers as u64);
    let steps =
        if in_step.is_some() { (status.counts.batches / trainers, 1) } else { (status.counts.batches, trainers) };
    let mut shared = Shared { in_step, steps, ..Shared::default() };
    match receive_queue {
        Some(receive_queue) => {
            let receive_queue = Arc::clone(receive_queue);
            shared.done = Some(Arc::new(move |id| receive_queue.batch_done(id)));
        }
        None => {
            let (begins, ends) = (leases.clone(), leases.clone());
            shared.begun = Some(Arc::new(move |batch| {
                let (id, rows) = (BatchId::of(batch), batch.labels.len() as u64);
                begins.progress().batch_sent(id, rows, batch.closes);
                if rows == 0 {
                    begins.batch_done(id);
                }
            }));
            shared.done = Some(Arc::new(move |id| ends.batch_done(id)));
        }
    }
    shared
}

fn order(job: &Job, rank: u32) -> Order {
    match job.in_step() as u32 {
        1 if ordered(job) => Order::Data { rank: 0, of: 1 },
        1 => Order::Any,
        of => Order::Data { rank, of },
    }
}

/// A link's credits.
fn credits(job: &Job) -> Credits {
    let placement = &job.placement;
    Credits { batches: placement.in_flight.min(u32::MAX as usize) as u32, bytes: placement.in_flight_bytes.0 as u64 }
}
