//! A trainer's client of the snapshots in the ps processes: each ps writes the rows of its own shards, and its block of the dense
//! parameters, straight to the store.

use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::{Peer, Retry};
use forebay_ps::SnapshotKind;
use futures::future::try_join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::CutPlan;
use crate::model_folder::FileEntry;

/// A live ps answers within this time.
const DEADLINE: Duration = Duration::from_secs(10);

/// The time between two questions whether the files are written.
const POLL: Duration = Duration::from_millis(100);

/// The name of the ps's handler.
pub(super) const NAME: &str = "snapshots";

/// The body of `snapshots.begin`, `snapshots.written` and `snapshots.keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SnapshotRequest {
    /// The number of the checkpoint.
    pub(super) number: u64,
    /// As in [`CutPlan`].
    #[serde(rename = "attempt")]
    pub(super) try_id: u64,
    /// All rows, or those that changed.
    pub(super) full: bool,
}

impl SnapshotRequest {
    pub(super) fn plan(self) -> CutPlan {
        let kind = if self.full { SnapshotKind::Full } else { SnapshotKind::Changes };
        CutPlan { number: self.number, try_id: self.try_id, kind }
    }
}

/// The reply to `snapshots.written`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum WrittenReply {
    /// Ask again.
    Writing,
    /// The files of the shards, and that of the dense block.
    Written { files: Vec<FileEntry>, dense: Option<FileEntry> },
}

/// The ps processes of a run, by rank.
pub(crate) struct PsSnapshots {
    peers: Vec<Peer>,
    retry: Retry,
}

impl PsSnapshots {
    pub(crate) fn new(peers: Vec<Peer>, retry: Retry) -> Self {
        Self { peers, retry }
    }

    /// Begins a snapshot in every ps. When it returns, all have begun.
    pub(crate) async fn begin(&self, plan: CutPlan) -> Result<(), Fault> {
        self.all::<()>("begin", plan).await.map(drop)
    }

    /// Waits until every ps has written its files. Returns those of the shards and those of the dense blocks, by rank.
    ///
    /// # Errors
    /// A ps could not write.
    pub(crate) async fn written(&self, plan: CutPlan) -> Result<(Vec<FileEntry>, Vec<FileEntry>), Fault> {
        loop {
            let replies = self.all::<WrittenReply>("written", plan).await?;
            let (mut all_files, mut all_dense, mut writing) = (Vec::new(), Vec::new(), false);
            for reply in replies {
                match reply {
                    WrittenReply::Writing => writing = true,
                    WrittenReply::Written { files, dense } => {
                        all_files.extend(files);
                        all_dense.extend(dense);
                    }
                }
            }
            if !writing {
                return Ok((all_files, all_dense));
            }
            let Some(peer) = self.peers.first() else { return Ok((all_files, all_dense)) };
            // The caller's thread has no runtime of its own.
            let _ = peer.io().spawn(async { tokio::time::sleep(POLL).await }).await;
        }
    }

    /// The checkpoint is there: the next snapshot of changes begins where this one did.
    pub(crate) async fn keep(&self, plan: CutPlan) -> Result<(), Fault> {
        self.all::<()>("keep", plan).await.map(drop)
    }

    async fn all<R: DeserializeOwned + Send + 'static>(&self, kind: &str, plan: CutPlan) -> Result<Vec<R>, Fault> {
        let full = plan.kind == SnapshotKind::Full;
        let request = SnapshotRequest { number: plan.number, try_id: plan.try_id, full };
        let kind = format!("{NAME}.{kind}");
        try_join_all(self.peers.iter().map(|peer| {
            let (peer, retry, kind) = (peer.clone(), self.retry.clone(), kind.clone());
            let what = format!("the ps at {}", peer.address());
            async move {
                let asked = peer
                    .io()
                    .clone()
                    .spawn(async move { retry.run(&what, || peer.action::<_, R>(&kind, &request, DEADLINE)).await });
                asked.await.map_err(|e| Fault::of_task("a request to a ps panicked", e))?
            }
        }))
        .await
    }
}
