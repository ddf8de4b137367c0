//! Acknowledges push ids to the shards and the dense block of this process: they forget the ids of windows that are done.
//!
//! A window is done when all its batches are done, and a batch is done when every shard and every dense block has answered its push. So
//! every push of such a window is applied, and a late duplicate counts as applied.

use forebay_actors::Fault;
use forebay_batches::BatchId;
use forebay_job::Job;
use forebay_ps::TableClient;
use forebay_ps::dense::DenseBlock;
use tokio::sync::watch;

use super::messages::RunStatus;

/// Tells the shards and the dense block of this process which push ids they may forget.
pub(crate) struct Acknowledger {
    table: TableClient,
    dense: Option<DenseBlock>,
    /// (epoch, window): all windows before it are acknowledged.
    acknowledged: (u32, u64),
}

impl Acknowledger {
    /// For a run of `job`. `None` with exact staleness: there a window is done before its pushes are applied, and their ids have other
    /// series, which the trainers acknowledge.
    pub(crate) fn of(job: &Job, table: TableClient, dense: Option<DenseBlock>) -> Option<Self> {
        (!Self::is_left_to_trainers(job)).then(|| Self::new(table, dense))
    }

    /// Whether the trainers acknowledge pushes.
    pub(crate) fn is_left_to_trainers(job: &Job) -> bool {
        job.train.staleness.exactly
    }

    fn new(table: TableClient, dense: Option<DenseBlock>) -> Self {
        Self { table, dense, acknowledged: (0, 0) }
    }

    /// Acknowledges the push ids of all windows before `first_open`.
    ///
    /// # Errors
    /// A shard or the block has died.
    pub(crate) async fn acknowledge_up_to(&mut self, first_open: (u32, u64)) -> Result<(), Fault> {
        if first_open <= self.acknowledged {
            return Ok(());
        }
        let (epoch, window) = first_open;
        let series = BatchId { epoch, window, index: 0 }.push_id().series;
        self.table.acknowledge_before(series).await?;
        if let Some(dense) = &self.dense {
            dense.acknowledge_before(series).await?;
        }
        self.acknowledged = first_open;
        Ok(())
    }

    /// Acknowledges with every new status, until the member's last clone is dropped.
    pub(crate) async fn follow(mut self, mut status: watch::Receiver<RunStatus>) {
        loop {
            let first_open = status.borrow_and_update().first_open;
            if let Err(fault) = self.acknowledge_up_to(first_open).await {
                tracing::debug!(%fault, "push ids are not acknowledged any more");
                return;
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::Host;
    use forebay_ps::{Init, Optimizer, PartConfig, PushOutcome, TableConfig, start_table};
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn shards_remember_the_push_ids_of_open_windows_only() {
        let sgd = Optimizer::Sgd { lr: 1.0.into(), l2: 0.0 };
        let config = TableConfig::new("t", 1, vec![PartConfig::new("w", 1, sgd, Init::Zeros)]);
        let host = Host::start("ps").unwrap();
        let table = start_table(&host, config, 2).unwrap();
        let keys: Vec<u64> = (0..64).collect();
        let mut acknowledger = Acknowledger::new(table.clone(), None);
        let push = |epoch, window, index| {
            let id = BatchId { epoch, window, index }.push_id();
            block_on(table.push_once(id, &keys, &[1.0; 64], 1)).unwrap()
        };
        let names = || block_on(table.stats()).unwrap().push_ids();
        for epoch in 0..3 {
            for window in 0..10 {
                for index in 0..5 {
                    assert_eq!(push(epoch, window, index), PushOutcome::Applied);
                }
                // One window behind.
                let open = if window > 0 { (epoch, window) } else { (epoch, 0) };
                block_on(acknowledger.acknowledge_up_to(open)).unwrap();
                assert_eq!(names(), 2 * 5, "of the open window alone, in both shards");
                assert_eq!(push(epoch, window, 4), PushOutcome::Already);
                // An older status changes nothing.
                block_on(acknowledger.acknowledge_up_to((0, 0))).unwrap();
            }
        }
        assert_eq!(push(1, 9, 77), PushOutcome::Already, "late, of a window that is done");
        block_on(acknowledger.acknowledge_up_to((3, 0))).unwrap();
        assert_eq!(names(), 0);
        drop((acknowledger, table));
        host.stop().unwrap();
    }
}
