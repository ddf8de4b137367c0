//! The names of acknowledger, forgotten once their windows are done: shards know each push that they applied until then.
//!
//! Comes in: how far the run is. Goes out: word to the shards, and to the dense block, of this process. Waits for room in
//! their mailboxes and for them.
//!
//! A window is done when every batch of it is, and a batch when every shard and every block has answered its push: nobody
//! pushes anything of it that must still be applied. What comes late all the same counts as applied.

use forebay_actors::Fault;
use forebay_ps::TableClient;
use forebay_ps::dense::DenseBlock;
use tokio::sync::watch;

use super::messages::RunStatus;
use crate::flow::BatchId;

/// What remembers pushes in this process.
pub(super) struct Acknowledger {
    table: TableClient,
    dense: Option<DenseBlock>,
    /// The first window that is not settled.
    open: (u32, u64),
}

impl Acknowledger {
    pub(super) fn new(table: TableClient, dense: Option<DenseBlock>) -> Self {
        Self { table, dense, open: (0, 0) }
    }

    /// Forgets the pushes of all windows before `first_open`.
    ///
    /// # Errors
    /// A shard or the block has died.
    pub(super) async fn acknowledge(&mut self, first_open: (u32, u64)) -> Result<(), Fault> {
        if first_open <= self.open {
            return Ok(());
        }
        let (epoch, window) = first_open;
        let source = BatchId { epoch, window, index: 0 }.push_id().source;
        self.table.acknowledge_before(source).await?;
        if let Some(dense) = &self.dense {
            dense.acknowledge_before(source).await?;
        }
        self.open = first_open;
        Ok(())
    }

    /// Does so until there are no status any more.
    pub(super) async fn follow(mut self, mut status: watch::Receiver<RunStatus>) {
        loop {
            let first_open = status.borrow_and_update().first_open;
            if let Err(fault) = self.acknowledge(first_open).await {
                tracing::debug!(%fault, "pushes are not settled any more");
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
    use forebay_ps::{Init, Optimizer, PartConfig, PushOutcome, Storage, TableConfig, start_table};
    use futures::executor::block_on;

    use super::*;

    /// Names stay few however many windows a run has, and what is open is not taken for done.
    #[test]
    fn names_are_those_of_windows_that_are_open() {
        let part = PartConfig { name: "w".into(), dim: 1, optimizer: Optimizer::Sgd { lr: 1.0 }, init: Init::Zeros };
        let config = TableConfig { name: "t".into(), seed: 1, parts: vec![part], storage: Storage::F32 };
        let host = Host::start("ps").unwrap();
        let table = start_table(&host, config, 2).unwrap();
        let keys: Vec<u64> = (0..64).collect();
        let mut acknowledger = Acknowledger::new(table.clone(), None);
        let push = |epoch, window, index| {
            let id = BatchId { epoch, window, index }.push_id();
            block_on(table.push_once(id, &keys, &[1.0; 64], 1)).unwrap()
        };
        let names = || block_on(table.stats()).unwrap().names();
        for epoch in 0..3 {
            for window in 0..10 {
                for index in 0..5 {
                    assert_eq!(push(epoch, window, index), PushOutcome::Applied);
                }
                // One window behind.
                let open = if window > 0 { (epoch, window) } else { (epoch, 0) };
                block_on(acknowledger.acknowledge(open)).unwrap();
                assert_eq!(names(), 2 * 5, "of the open window alone, in both shards");
                assert_eq!(push(epoch, window, 4), PushOutcome::Already);
                // RunStatus that are older than what is known change nothing.
                block_on(acknowledger.acknowledge((0, 0))).unwrap();
            }
        }
        assert_eq!(push(1, 9, 77), PushOutcome::Already, "late, of a window that is done");
        block_on(acknowledger.acknowledge((3, 0))).unwrap();
        assert_eq!(names(), 0);
        drop((acknowledger, table));
        host.stop().unwrap();
    }
}
