//! A trainer: takes batches from readers (or reads by itself), and trains over the shards of the ps processes.
//!
//! Comes in: a job and a [`ProcessConfig`]. Goes out: a [`Training`] that is run like any other. Blocks until all processes are there.

use std::sync::Arc;

use forebay_actors::{Fault, Host};
use forebay_net::{Handler, runtime};
use forebay_ps::{Trainer, start_table};

use super::acknowledge::Pushes;
use super::batches::handler::Batches;
use super::batches::receive_queue::{Credits, Order, ReceiveQueue};
use super::dense::OnPs;
use super::member::Leaseholder;
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
pub fn trainer(job: Job, seat: &ProcessConfig) -> Result<Training, Fault> {
    job.check()?;
    let placement = &job.placement;
    let receive_queue =
        (placement.readers > 0).then(|| Arc::new(ReceiveQueue::new(order(&job, seat.rank), credits(&job))));
    let parts = receive_queue
        .iter()
        .map(|receive_queue| Arc::new(Batches::new(Arc::clone(receive_queue))) as Arc<dyn Handler>)
        .collect();
    let session = ClusterSession::join(seat, &job, parts)?;
    match begin(job, seat.rank, receive_queue, &session) {
        Ok(training) => Ok(training.session(session)),
        Err(fault) => {
            session.fail(&fault);
            Err(fault)
        }
    }
}

fn begin(
    job: Job,
    rank: u32,
    receive_queue: Option<Arc<ReceiveQueue>>,
    session: &ClusterSession,
) -> Result<Training, Fault> {
    let news = session.begun()?;
    let me = Trainer { rank, incarnation: session.member.me().incarnation };
    let host = Host::start("ps")?;
    let mut parts = Parts::over(job, None, host, |host, job, config| {
        if job.placement.ps == 0 {
            let table = start_table(host, config.clone(), job.table.shards)?;
            runtime().spawn(Pushes::new(table.clone(), None).follow(session.member.watch()));
            return Ok(table);
        }
        session.table(job, &news, config)
    })?;
    parts.table = parts.table.of_trainer(me);
    let holder = Leaseholder::new(session.member.clone());
    parts.shared = shared(&parts.job, &news, &receive_queue, &holder);
    if parts.job.placement.dense() == DenseAt::Ps {
        let (peers, retry) = session.shards(&parts.job, &news)?;
        let store = runtime().block_on(OnPs::connect(&peers, &parts.job, &parts.spec, me, retry))?;
        parts.shared.dense = Some(Arc::new(store));
    }
    match receive_queue {
        Some(receive_queue) => Ok(Training::receiving(parts, receive_queue, &session.member)),
        None => Training::from_parts(parts, Some(Arc::new(holder))),
    }
}

/// What the stages tell others.
fn shared(job: &Job, news: &RunStatus, receive_queue: &Option<Arc<ReceiveQueue>>, holder: &Leaseholder) -> Shared {
    // In step, a step is a batch of each trainer; else each of ours counts for all of theirs.
    let (in_step, trainers) = (job.round(), job.placement.trainers as u64);
    let steps = if in_step.is_some() { (news.account.batches / trainers, 1) } else { (news.account.batches, trainers) };
    let mut shared = Shared { in_step, steps, ..Shared::default() };
    match receive_queue {
        Some(receive_queue) => {
            let receive_queue = Arc::clone(receive_queue);
            shared.done = Some(Arc::new(move |id| receive_queue.done(id)));
        }
        None => {
            let (begins, ends) = (holder.clone(), holder.clone());
            shared.begun = Some(Arc::new(move |batch| {
                let (id, rows) = (BatchId::of(batch), batch.labels.len() as u64);
                begins.tracker().sent(id, rows, batch.closes);
                if rows == 0 {
                    begins.done(id);
                }
            }));
            shared.done = Some(Arc::new(move |id| ends.done(id)));
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
