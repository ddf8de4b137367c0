//! A ps process: it holds its share of the shards and of the dense parameters; the first one runs the coordinator, too.

use std::sync::Arc;

use forebay_actors::{Fault, Host, counted};
use forebay_job::{DenseAt, Job};
use forebay_net::Handler;
use forebay_ps::remote::TableService;
use forebay_ps::{Route, TableClient, start_shards};
use tokio::time::sleep;

use crate::checkpoint::{CheckpointFolder, load_rows};
use crate::cluster::acknowledge::Acknowledger;
use crate::cluster::members::check_rank;
use crate::cluster::meters::MeterSender;
use crate::cluster::snapshot_handler::SnapshotHandler;
use crate::cluster::start_state::StartState;
use crate::cluster::{ClusterProcess, ClusterSession, Role, RunPhase, RunStatus, TICK, dense};
use crate::columns::sampled_settings::SampledSettings;
use crate::context::Context;
use crate::dense_model::job_model::JobModel;

/// A ps process that has joined.
pub struct Ps {
    session: ClusterSession,
    host: Host,
    table: TableClient,
    acknowledger: Option<Acknowledger>,
}

impl Ps {
    /// Starts the shards and joins.
    ///
    /// # Errors
    /// The job does not fit together or has no ps of this rank, the address cannot be listened on, or the coordinator refuses.
    pub fn start(job: &Job, process: &ClusterProcess, context: &Context) -> Result<Self, Fault> {
        job.check()?;
        context.registry.check(job)?;
        check_rank(Role::Ps, process.config().rank, job.placement.ps as u32)?;
        let config = JobModel::of(job, &context.registry)?.table_config(job);
        let host = Host::start("ps")?;
        let rank = process.config().rank as usize;
        let table = start_shards(&host, config, Route::of_process(rank, job.placement.ps, job.shards()))?;
        let tables = TableService::new(vec![table.clone()])
            .of_trainers(job.placement.trainers as u32)
            .trainers_acknowledge(Acknowledger::is_left_to_trainers(job));
        let mut handlers: Vec<Arc<dyn Handler>> = vec![Arc::new(tables)];
        let mut block = None;
        if job.placement.dense() == DenseAt::Ps {
            let (service, held) = dense::serve(&host, job, context, rank)?;
            handlers.push(Arc::new(service));
            block = Some(held);
        }
        if let Some(to) = &job.checkpoint.to {
            let folder = CheckpointFolder::open(to, context)?;
            // The first trainer tries the folder. This process writes to it, too.
            folder.folder.remember_disk();
            handlers.push(Arc::new(SnapshotHandler::new(folder, process.config().rank, table.clone(), block.clone())));
        }
        let load = |start| match start {
            None => Ok(()),
            Some(StartState::Checkpoint(folder, manifest)) => {
                load_rows(&folder, &manifest, &table)?;
                if let Some(block) = &block {
                    dense::restore(block, job, rank, &folder, &manifest)?;
                }
                let rows = futures::executor::block_on(table.stats())?.rows();
                tracing::info!("loaded {} of checkpoint {}", counted(rows, "row"), manifest.number);
                Ok(())
            }
            Some(StartState::Model(predecessor)) => {
                predecessor.load_rows(&table)?;
                block.as_ref().map_or(Ok(()), |block| dense::continue_from(block, job, context, rank, &predecessor))
            }
        };
        let session = ClusterSession::join(context, process, job, handlers, |start| {
            load(start).map(|()| SampledSettings::default())
        })?;
        Ok(Self { session, host, acknowledger: Acknowledger::of(job, table.clone(), block), table })
    }

    /// Serves until the run is over. Calls `stop` and `show` several times a second; once `stop` returns true, the run is
    /// drained, because it cannot go on without these rows.
    pub fn run(self, stop: impl Fn() -> bool, show: impl FnMut(&RunStatus)) -> Result<(), Fault> {
        let Self { session, host, table, acknowledger } = self;
        let ended = session.io.block_on(async {
            serve(&session, &host, acknowledger, stop, show).await?;
            tracing::info!("{}", table.stats().await?);
            Ok(())
        });
        session.leave();
        ended.and(host.stop())
    }
}

async fn serve(
    session: &ClusterSession,
    host: &Host,
    mut acknowledger: Option<Acknowledger>,
    stop: impl Fn() -> bool,
    mut show: impl FnMut(&RunStatus),
) -> Result<(), Fault> {
    let (mut status_updates, mut drained) = (session.member.subscribe(), false);
    let (mut services, mut meters) = (None, None);
    loop {
        let status = status_updates.borrow_and_update().clone();
        if let Some(acknowledger) = &mut acknowledger {
            acknowledger.acknowledge_up_to(status.first_open).await?;
        }
        match &status.phase {
            RunPhase::Over => return Ok(()),
            RunPhase::Failed(failure) => return Err(failure.fault()),
            // The run has begun: all members have joined. A short run may be finished by the first look.
            RunPhase::Running | RunPhase::Draining | RunPhase::Finished if services.is_none() => {
                let sent = services.insert(host.meters()).clone();
                meters = Some(MeterSender::start(&session.member, move || sent.report()));
            }
            _ => {}
        }
        if status.phase == RunPhase::Finished
            && let (Some(services), Some(meters)) = (&services, meters.take())
        {
            meters.finish_async(services.report(), &services.timeline(), None).await;
        }
        if !drained && stop() {
            session.drain();
            drained = true;
        }
        show(&status);
        tokio::select! {
            changed = status_updates.changed() => changed.map_err(|_| Fault::internal("a ps receives no run status any more"))?,
            () = sleep(TICK) => {}
        }
    }
}
