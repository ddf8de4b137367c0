//! A trainer's client of the snapshots in the ps processes: each ps writes the rows of its own shards, and its block of the dense
//! parameters, straight to the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// Ask again. The store has taken this many bytes so far, of this snapshot and of earlier ones.
    Writing { taken: u64 },
    /// The files of the shards, and the file of the dense block.
    Written { files: Vec<FileEntry>, dense: Option<FileEntry> },
}

impl WrittenReply {
    /// The bytes that the store has taken so far, while the files are written.
    fn taken(&self) -> Option<u64> {
        match self {
            Self::Writing { taken } => Some(*taken),
            Self::Written { .. } => None,
        }
    }
}

/// The ps processes of a run, by rank.
pub(crate) struct PsSnapshots {
    peers: Vec<Peer>,
    retry: Retry,
    /// Grows while a store takes something of a snapshot, if anything counts that.
    taken: OnceLock<Arc<AtomicU64>>,
}

impl PsSnapshots {
    /// Requests are tried again as `retry` says. When `retry` gives up, the wait for files that a ps writes ends, too.
    pub(crate) fn new(peers: Vec<Peer>, retry: Retry) -> Self {
        Self { peers, retry, taken: OnceLock::new() }
    }

    /// Makes `taken` grow while [`written`](Self::written) waits and the store of a ps takes something.
    pub(crate) fn counted_by(&self, taken: Arc<AtomicU64>) {
        let _ = self.taken.set(taken);
    }

    /// Begins a snapshot in every ps. When it returns, all have begun.
    pub(crate) async fn begin(&self, plan: CutPlan) -> Result<(), Fault> {
        self.all::<()>("begin", plan).await.map(drop)
    }

    /// Waits until every ps has written its files. Returns the files of the shards and the files of the dense blocks, by rank.
    ///
    /// # Errors
    /// A ps could not write. The retry gives up.
    pub(crate) async fn written(&self, plan: CutPlan) -> Result<(Vec<FileEntry>, Vec<FileEntry>), Fault> {
        // By rank: the bytes that the ps had written at the last answer; `None` once it has written all.
        let mut before: Vec<Option<u64>> = Vec::new();
        loop {
            let replies = self.all::<WrittenReply>("written", plan).await?;
            let (mut all_files, mut all_dense, mut writing) = (Vec::new(), Vec::new(), false);
            let now: Vec<_> = replies.iter().map(WrittenReply::taken).collect();
            if now != before
                && let Some(taken) = self.taken.get()
            {
                taken.fetch_add(1, Ordering::SeqCst);
            }
            before = now;
            for reply in replies {
                match reply {
                    WrittenReply::Writing { .. } => writing = true,
                    WrittenReply::Written { files, dense } => {
                        all_files.extend(files);
                        all_dense.extend(dense);
                    }
                }
            }
            if !writing {
                return Ok((all_files, all_dense));
            }
            if let Some(fault) = self.retry.given_up.as_ref().and_then(|given_up| given_up()) {
                return Err(fault);
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use async_trait::async_trait;
    use bytes::Bytes;
    use forebay_actors::IoRuntime;
    use forebay_net::{Caller, Dialer, Handler, Health, Identity, Limits, Security, Server};
    use futures::executor::block_on;

    use super::super::json;
    use super::*;

    /// A ps whose store takes a byte between each of the first questions, and hangs then.
    struct Hangs(Arc<AtomicU64>);

    #[async_trait]
    impl Handler for Hangs {
        fn name(&self) -> &'static str {
            NAME
        }

        fn actions(&self) -> Vec<(String, String)> {
            vec![("written".to_owned(), "the files of a snapshot".to_owned())]
        }

        async fn action(&self, _: &Caller, _: &str, _: Bytes) -> Result<Bytes, Fault> {
            json::write(&WrittenReply::Writing { taken: self.0.fetch_add(1, Ordering::SeqCst).min(3) })
        }
    }

    /// A bug: a run that was to end waited forever for a ps whose store hung.
    #[test]
    fn a_trainer_sees_what_the_store_of_a_ps_takes_and_waits_for_it_until_the_run_gives_up() {
        let (io, asked, taken) = (IoRuntime::new("test", 1), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let identity = |role: &str| Identity { run: "run".into(), role: role.into(), incarnation: 0, attempt: 1 };
        let (security, limits) = (Security::default(), Limits::default());
        let handlers: Vec<Arc<dyn Handler>> = vec![Arc::new(Hangs(Arc::clone(&asked)))];
        let any = "127.0.0.1:0".parse().unwrap();
        let begin = Server::start(&io, any, &security, identity("ps 0"), &limits, handlers, Health::new());
        let server = io.block_on(begin).unwrap();
        let dialer = Dialer::new(&io, &security, &identity("trainer 0"), &limits).unwrap();
        let peer = dialer.peer(&server.address().to_string()).unwrap();
        let gives_up = Arc::<AtomicBool>::default();
        let over = Arc::clone(&gives_up);
        let retry = Retry::within(Duration::from_secs(60))
            .unless(move || over.load(Ordering::SeqCst).then(|| Fault::external("the run ends without it")));
        let snapshots = PsSnapshots::new(vec![peer], retry);
        snapshots.counted_by(Arc::clone(&taken));
        let plan = CutPlan { number: 1, try_id: 2, kind: SnapshotKind::Full };
        let waiting = std::thread::spawn(move || block_on(snapshots.written(plan)));
        let often = async {
            while asked.load(Ordering::SeqCst) < 8 {
                tokio::time::sleep(POLL / 10).await;
            }
        };
        io.block_on(async { tokio::time::timeout(Duration::from_secs(60), often).await }).expect("it asks again");
        assert_eq!(taken.load(Ordering::SeqCst), 4, "it has grown with each of the first answers");
        gives_up.store(true, Ordering::SeqCst);
        let fault = waiting.join().unwrap().unwrap_err();
        assert!(fault.to_string().contains("the run ends without it"), "{fault}");
        io.block_on(server.stop(Duration::ZERO));
    }
}
