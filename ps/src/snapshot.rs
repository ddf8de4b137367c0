//! Snapshots of the shards in this process: the rows of one moment, read page by page while training goes on.

use std::sync::Arc;

use forebay_actors::{Client, Fault};
use futures::future::try_join_all;

use crate::client::TableClient;
use crate::endpoint::{Endpoint, wrong_reply};
use crate::lifetime::Absent;
use crate::shard::{Call, Reply};
use crate::table::{ExportBlock, SnapshotKind};

/// The snapshot of one shard: its rows as they were when the snapshot began.
///
/// Read all pages, then [`keep`](Self::keep) it. A snapshot that is dropped ends before the shard's next call, and counts
/// as not made: its rows are in the next snapshot of [`Changes`](SnapshotKind::Changes) again.
pub struct ShardSnapshot {
    shard: usize,
    rows: u64,
    left: u64,
    client: Client<Call, Reply>,
    /// The shard ends the snapshot when this handle is dropped.
    holder: Arc<()>,
    /// A call for a page was begun and not finished.
    asking: bool,
}

impl std::fmt::Debug for ShardSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShardSnapshot(shard {}, {} of {} rows to read)", self.shard, self.left, self.rows)
    }
}

impl TableClient {
    /// Begins a snapshot of every shard that this client reaches; all of them must be in this process. Each shard's snapshot has its rows
    /// as they are when the call reaches the shard: for one moment of the whole table, no pull, push or import may be under way.
    ///
    /// A shard waits less than a millisecond per 10 M rows. While its snapshot is open, it holds a copy of each row that
    /// changes before it was read. Cancel safe: the snapshots that have begun end.
    ///
    /// # Errors
    /// A user fault: the shards are in other processes. An internal one: a snapshot of a shard is open, or a shard died.
    pub async fn begin_snapshot(&self, kind: SnapshotKind) -> Result<Vec<ShardSnapshot>, Fault> {
        let shards = self.held().zip(self.endpoints());
        try_join_all(shards.map(|(shard, endpoint)| self.begin_one(shard, endpoint, kind))).await
    }

    async fn begin_one(&self, shard: usize, endpoint: &Endpoint, kind: SnapshotKind) -> Result<ShardSnapshot, Fault> {
        let Endpoint::Shard(client) = endpoint else { return Err(self.not_here()) };
        let holder = Arc::new(());
        match client.call(Call::BeginSnapshot { kind, holder: Arc::downgrade(&holder) }).await? {
            Reply::SnapshotRows(rows) => {
                Ok(ShardSnapshot { shard, rows, left: rows, client: client.clone(), holder, asking: false })
            }
            _ => Err(wrong_reply()),
        }
    }

    fn not_here(&self) -> Fault {
        let table = self.table();
        Fault::user(format!(
            "a snapshot of table `{table}` was asked of a client whose shards are in other processes; ask in the processes \
             that hold them"
        ))
    }
}

impl ShardSnapshot {
    /// The number of the shard in the whole table.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Rows of the snapshot: as many as all pages have together.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The next rows as they were when the snapshot began, at most `at_most` and at most about 2 MiB; an empty block means
    /// that all were given. Rows come in the order in which they came to the shard, each once.
    ///
    /// The shard spends at most a few milliseconds at a time, and answers other calls in between. Not cancel safe: the page
    /// of a call that is dropped is lost, and every later call fails.
    ///
    /// # Errors
    /// An internal fault: the shard died, or a page was lost.
    pub async fn next(&mut self, at_most: usize) -> Result<ExportBlock, Fault> {
        if self.left == 0 {
            return Ok(ExportBlock::default());
        }
        self.check_whole()?;
        self.asking = true;
        loop {
            match self.client.call(Call::SnapshotPage { at_most }).await? {
                // The shard has listed some of its keys by row, and answers other calls before it lists more.
                Reply::Page(None) => {}
                Reply::Page(Some(block)) => {
                    self.left = self.left.saturating_sub(block.keys.len() as u64);
                    self.asking = false;
                    return Ok(block);
                }
                _ => return Err(wrong_reply()),
            }
        }
    }

    /// The next keys without a row, at most `at_most`; an empty list after the last. A restore sets these keys before the
    /// rows ([`TableClient::import_absent_held`]): a count of 0 says that the row was removed, and perhaps made anew.
    ///
    /// Not cancel safe: the keys of a call that is dropped are lost.
    ///
    /// # Errors
    /// An internal fault: the shard died.
    pub async fn next_absent(&mut self, at_most: usize) -> Result<Vec<Absent>, Fault> {
        self.check_whole()?;
        self.asking = true;
        let Reply::Absent(absent) = self.client.call(Call::SnapshotAbsent { at_most }).await? else {
            return Err(wrong_reply());
        };
        self.asking = false;
        Ok(absent)
    }

    /// Ends the snapshot once its rows are safe: the next snapshot of [`Changes`](SnapshotKind::Changes) has the rows that
    /// changed since this one began. Dropped before it is ready, the snapshot may or may not be kept.
    ///
    /// # Errors
    /// An internal fault, and the snapshot is not kept: rows are left that no page gave, a page was lost, or the shard died.
    pub async fn keep(self) -> Result<(), Fault> {
        self.check_whole()?;
        if self.left > 0 {
            let Self { shard, left, rows, .. } = self;
            return Err(Fault::internal(format!(
                "the snapshot of shard {shard} was to be kept, but {left} of its {rows} rows were not read"
            )));
        }
        self.keep_unread().await
    }

    /// As [`keep`](Self::keep), whether or not the rows were read. For a table that was just restored: its rows are safe
    /// already.
    ///
    /// # Errors
    /// An internal fault: the shard died.
    pub async fn keep_unread(self) -> Result<(), Fault> {
        let reply = self.client.call(Call::KeepSnapshot).await;
        // Until here, the shard must not take the snapshot for dropped.
        drop(self.holder);
        if matches!(reply?, Reply::Done) { Ok(()) } else { Err(wrong_reply()) }
    }

    fn check_whole(&self) -> Result<(), Fault> {
        let shard = self.shard;
        let lost = || Fault::internal(format!("a page of the snapshot of shard {shard} was asked for and not awaited"));
        if self.asking { Err(lost()) } else { Ok(()) }
    }
}
