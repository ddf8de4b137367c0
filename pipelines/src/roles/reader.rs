//! A reader process: it reads, parses and batches the windows of its leases and sends the batches to the trainers.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_actors::{Fault, FaultKind, LedgerReport, Outcome, Pipeline, Report, Running, counted};
use forebay_batches::Staleness;
use forebay_job::{Job, LookupAt};
use forebay_ps::TableClient;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::away_rows::wait_for_rows;
use crate::cluster::batches::channel::{self, ReaderChannels};
use crate::cluster::batches::send_queue::SendQueue;
use crate::cluster::batches::unreached::Unreached;
use crate::cluster::lease_client::LeaseClient;
use crate::cluster::meters::MeterSender;
use crate::cluster::session::UNREACHED;
use crate::cluster::{ClusterProcess, ClusterSession, PredictionPlan, Role, RunPhase, RunStatus, TICK};
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;
use crate::dense_model::job_model::JobModel;
use crate::predecessor::job_to_read;
use crate::sources;
use crate::stages::STOPPED_EARLY;
use crate::training::wiring;
use crate::tuning::TuningThread;

/// If a reader goes on, it takes a lease that was given back within this time.
const UNTAKEN: Duration = Duration::from_secs(2);

/// A reader that has joined.
pub struct Reader {
    session: ClusterSession,
    reading: Reading,
    /// Changes the replicas of stages.
    tuning: Option<TuningThread>,
}

/// A pipeline that reads, and the streams from its send queue to the trainers.
struct Reading {
    running: Running,
    send_queue: Arc<SendQueue>,
    leases: LeaseClient,
    streams: JoinSet<()>,
    unreached: Unreached,
    /// The lease time of the run.
    lease: Duration,
}

impl Reader {
    /// Joins, waits until all members have joined, and starts to read.
    ///
    /// # Errors
    /// The job does not fit together, its data is not there, or the coordinator refuses.
    pub fn start(job: &Job, process: &ClusterProcess, context: &Context) -> Result<Self, Fault> {
        job.check()?;
        let again = process.has_joined_before();
        Self::join(job, process, context, |session, send_queue, leases| {
            if again || session.status().data.is_some() {
                wait_for_rows(job, context, &|| session.ends())?;
            }
            let table = Self::table(job, context, session)?;
            let mut job = job_to_read(job, context);
            if !job.columns.open_features().is_empty() {
                job.set_open_scales(&session.sampled_settings()?.scales)?;
            }
            let read = sources::windows(&job, context, Some(Arc::new(leases.clone())))?;
            wiring::reading(&job, context, send_queue, leases, table, read)
        })
    }

    /// As [`start`](Self::start), for a prediction: the rows of `plan` go to the process that scores.
    ///
    /// # Errors
    /// Its data is not there, or the process that scores refuses.
    pub fn start_to_predict(plan: &PredictionPlan, process: &ClusterProcess, context: &Context) -> Result<Self, Fault> {
        let job = &plan.job;
        job.check_saved()?;
        Self::join(job, process, context, |_, send_queue, leases| {
            let read = sources::windows_to_predict(job, context, &plan.keep, Arc::new(leases.clone()))?;
            wiring::reading_to_predict(plan, context, send_queue, leases, read)
        })
    }

    fn join(
        job: &Job,
        process: &ClusterProcess,
        context: &Context,
        wire: impl FnOnce(&ClusterSession, Arc<SendQueue>, LeaseClient) -> Result<Pipeline, Fault>,
    ) -> Result<Self, Fault> {
        context.registry.check(job)?;
        let session = ClusterSession::join(context, process, job, Vec::new(), |_| Ok(SampledSettings::default()))?;
        match Self::begin(job, &session, wire) {
            Ok(reading) => {
                let tuning = TuningThread::of(job, reading.running.control());
                Ok(Self { session, reading, tuning })
            }
            // It was asked to shut down: the others go on.
            Err(fault) if fault.kind == FaultKind::Drained => {
                session.leave();
                Err(fault)
            }
            Err(fault) => Err(session.fail(fault)),
        }
    }

    /// Starts the pipeline that `wire` makes around a send queue and leases, once all members have joined.
    fn begin(
        job: &Job,
        session: &ClusterSession,
        wire: impl FnOnce(&ClusterSession, Arc<SendQueue>, LeaseClient) -> Result<Pipeline, Fault>,
    ) -> Result<Reading, Fault> {
        let trainers = job.placement.trainers;
        let queues = job.in_step();
        let send_queue = Arc::new(SendQueue::new(queues, job.pipeline.links.lookup));
        let leases = LeaseClient::new(session.member.clone(), job);
        let pipeline = wire(session, Arc::clone(&send_queue), leases.clone())?;
        session.wait_until_started()?;
        let unreached = Unreached::new(queues);
        let channels = ReaderChannels {
            send_queue: Arc::clone(&send_queue),
            leases: leases.clone(),
            member: session.member.clone(),
            dialer: session.dialer.clone(),
            timeout: job.placement.timeout(),
            unreached: unreached.clone(),
            streams: job.placement.streams,
        };
        let streams = channel::open(&channels, trainers, queues);
        let lease = Duration::from_secs_f64(job.placement.lease_seconds);
        Ok(Reading { running: pipeline.start()?, send_queue, leases, streams, unreached, lease })
    }

    /// A client of the shards and this reader's tickets, if readers look up rows.
    fn table(
        job: &Job,
        context: &Context,
        session: &ClusterSession,
    ) -> Result<Option<(TableClient, Staleness)>, Fault> {
        if job.placement.lookup_at == LookupAt::Trainer {
            return Ok(None);
        }
        let rank = session.member.id().rank;
        let Some(tickets) = job.placement.tickets(rank, job.train.staleness.batches) else {
            return Err(Fault::user(format!(
                "reader {rank} joins a run whose tickets are shared out among {}: with placement.lookup_at = \
                 \"reader\" no more can be added",
                counted(job.placement.readers, "reader")
            )));
        };
        let status = session.wait_until_started()?;
        let config = JobModel::of(job, &context.registry)?.table_config(job);
        Ok(Some((session.table(job, &status, &config)?, Staleness::new(tickets - 1))))
    }

    /// Reads until every row is read, and stays until the model is saved: if a process dies before that, the readers read rows again. Calls
    /// `stop` and `show` several times a second; once `stop` returns true, the reader takes no more leases, finishes those that it has, and
    /// leaves. Other readers go on.
    ///
    /// # Errors
    /// Why the run has failed; a fault of the kind `RolledBack` if it has begun a new attempt; an external fault if this reader has left,
    /// because it does not reach the trainers, but there are other readers.
    pub fn run(self, stop: impl Fn() -> bool, mut show: impl FnMut(&Report)) -> Result<Report, Fault> {
        let Self { session, reading, tuning } = self;
        let Reading { running, send_queue, leases, streams, unreached, lease } = reading;
        let (run, mut status_updates) = (running.control(), session.member.subscribe());
        let (mut failure, mut leaves, mut untrained) = (None, false, 0);
        let meters = MeterSender::start(&session.member, {
            let run = running.control();
            move || run.snapshot()
        });
        let Outcome { result, mut report, .. } = session.io.block_on(async {
            let mut ended = pin!(running.outcome());
            let mut drained = false;
            let [mut untaken_since, mut unreached_since, mut blocked_since] =
                [(); 3].map(|()| ConditionTimer::default());
            loop {
                if !drained && stop() {
                    leases.progress().close();
                    drained = true;
                }
                let is_returned = status_updates.borrow().returned_leases > 0;
                let untaken = untaken_since.holds_for(drained && is_returned) > UNTAKEN;
                let ends = leases.progress().is_closed();
                let unreached_at_the_end = unreached_since.holds_for(ends && unreached.any()) > UNREACHED;
                let can_be_spared = {
                    let status = status_updates.borrow();
                    unreached.block(status.trainers.iter().flatten().count()) && other_readers_active(&status)
                };
                // The coordinator calls a trainer silent that it has not heard of for the lease time.
                if blocked_since.holds_for(can_be_spared) > 2 * lease && !leaves {
                    tracing::warn!(
                        "this reader does not reach its trainers: it gives its windows to the other readers"
                    );
                    leases.progress().close();
                    leaves = true;
                }
                if (untaken || unreached_at_the_end || leaves)
                    && leases.progress().give_all_back(unreached_at_the_end || leaves)
                {
                    send_queue.clear();
                }
                let status = status_updates.borrow_and_update().clone();
                match &status.phase {
                    RunPhase::Failed(failed) if failure.is_none() => {
                        run.kill(failed.fault());
                        failure = Some(failed.clone());
                    }
                    // All batches that are still queued here were trained on from another reader, or the training has stopped early.
                    RunPhase::Finished | RunPhase::Over => {
                        let rows = send_queue.clear();
                        if status.stopped_early {
                            leases.progress().close();
                            untrained += rows;
                        }
                    }
                    _ => {}
                }
                show(&run.snapshot());
                tokio::select! {
                    outcome = &mut ended => return outcome,
                    Ok(()) = status_updates.changed() => {}
                    () = sleep(TICK) => {}
                }
            }
        });
        drop((streams, tuning));
        count_untrained(&mut report.ledger, untrained);
        meters.finish(report.clone(), &run.timeline(), None);
        let result = result.and_then(|()| session.io.block_on(leases.wait_until_reported()));
        match (result, failure) {
            (Ok(()), None) if leaves && other_readers_active(&session.status()) => {
                session.leave();
                Err(Fault::external(
                    "this reader did not reach its trainers, and has left the run, which goes on with the other readers",
                ))
            }
            (Ok(()), None) => session.stay_until_over(stop).map(|()| report),
            (_, Some(failed)) => Err(failed.fault()),
            (Err(fault), None) => Err(session.fail(fault)),
        }
    }
}

/// These rows were sent, or waited to be sent, when the training stopped early.
fn count_untrained(ledger: &mut LedgerReport, rows: u64) {
    if rows > 0 {
        ledger.delivered = ledger.delivered.saturating_sub(rows);
        *ledger.rejected.entry(STOPPED_EARLY.to_owned()).or_default() += rows;
    }
}

/// Whether there are rows to read, for trainers that the coordinator hears of, and other readers that read them.
pub(crate) fn other_readers_active(status: &RunStatus) -> bool {
    let runs = matches!(status.phase, RunPhase::Running | RunPhase::Draining);
    // A trainer that has left may be silent.
    let there = (0..).zip(&status.trainers).filter(|(_, address)| address.is_some());
    let is_silent = |rank: u32| status.silent.contains(&format!("{} {rank}", Role::Trainer));
    runs && status.readers > 1 && !there.map(|(rank, _)| rank).any(is_silent)
}

/// The moment since which a condition holds.
#[derive(Default)]
struct ConditionTimer(Option<Instant>);

impl ConditionTimer {
    /// For how long the condition has held; zero if it does not hold.
    fn holds_for(&mut self, is_so: bool) -> Duration {
        self.0 = is_so.then(|| self.0.unwrap_or_else(Instant::now));
        self.0.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
