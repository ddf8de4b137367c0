//! The ps's request handler for snapshots: it begins them when the trainer asks, and writes their files on a thread of its own
//! while the shards go on to serve.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::Fault;
use forebay_net::{Caller, Handler};
use forebay_ps::dense::DenseBlock;
use forebay_ps::{ShardSnapshot, TableClient};

use super::dense::tensors;
use super::json;
use super::ps_snapshots::{NAME, SnapshotRequest, WrittenReply};
use crate::checkpoint::{CheckpointFolder, CutPlan, file_name, write_dense, write_shards};
use crate::model_folder::FileEntry;

/// Begins snapshots of the shards and of the dense block of this process, and writes them.
pub(super) struct SnapshotHandler {
    folder: CheckpointFolder,
    rank: u32,
    table: TableClient,
    dense: Option<DenseBlock>,
    state: Arc<Mutex<State>>,
}

/// The snapshot of this process. There is one at a time.
#[derive(Default)]
enum State {
    #[default]
    None,
    /// The shards begin.
    Beginning(SnapshotRequest),
    Writing(SnapshotRequest),
    Written(SnapshotRequest, Result<Files, Fault>),
    Kept(SnapshotRequest),
}

/// What one snapshot wrote. Dropped before the snapshots are kept, the next snapshot of changes has these rows again.
struct Files {
    files: Vec<FileEntry>,
    dense: Option<FileEntry>,
    snapshots: Vec<ShardSnapshot>,
}

impl SnapshotHandler {
    pub(super) fn new(folder: CheckpointFolder, rank: u32, table: TableClient, dense: Option<DenseBlock>) -> Self {
        Self { folder, rank, table, dense, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A request that comes twice has begun already.
    async fn begin(&self, request: SnapshotRequest) -> Result<(), Fault> {
        {
            let mut state = self.state();
            match &*state {
                State::Writing(known) | State::Written(known, _) | State::Kept(known) if *known == request => {
                    return Ok(());
                }
                // The trainer goes on after the answer, so a request that was sent again is answered when all shards have begun.
                State::Beginning(known) if *known == request => {
                    return Err(Fault::external("the snapshot is about to begin").retryable());
                }
                State::Beginning(_) | State::Writing(_) => {
                    return Err(Fault::external("an earlier snapshot is still written").retryable());
                }
                _ => *state = State::Beginning(request),
            }
        }
        let begun = async {
            let dense = match &self.dense {
                Some(dense) => Some(tensors(dense.save().await?)),
                None => None,
            };
            Ok((self.table.begin_snapshot(request.plan().kind).await?, dense))
        };
        let (mut snapshots, dense) = match begun.await {
            Ok(begun) => begun,
            Err(fault) => {
                *self.state() = State::None;
                return Err(fault);
            }
        };
        *self.state() = State::Writing(request);
        let (folder, table, rank, state) =
            (self.folder.clone(), self.table.clone(), self.rank, Arc::clone(&self.state));
        let write = move || {
            let plan: CutPlan = request.plan();
            let written = write_shards(&mut snapshots, &table, &folder.folder, plan).and_then(|files| {
                let name = file_name(plan.number, plan.attempt, &format!("dense-{rank:04}.safetensors"));
                let dense = dense.map(|dense| write_dense(&dense, &folder.folder, &name)).transpose()?;
                Ok(Files { files, dense, snapshots })
            });
            *lock(&state) = State::Written(request, written);
        };
        std::thread::Builder::new()
            .name("snapshot".into())
            .spawn(write)
            .map(drop)
            .map_err(|e| Fault::external("cannot start a thread that writes a snapshot").because(e))
    }

    fn written(&self, request: SnapshotRequest) -> Result<WrittenReply, Fault> {
        match &*self.state() {
            State::Beginning(known) | State::Writing(known) if *known == request => Ok(WrittenReply::Writing),
            State::Written(known, Ok(Files { files, dense, .. })) if *known == request => {
                Ok(WrittenReply::Written { files: files.clone(), dense: dense.clone() })
            }
            State::Written(known, Err(fault)) if *known == request => Err(fault.clone()),
            _ => Err(not_begun(request)),
        }
    }

    async fn keep(&self, request: SnapshotRequest) -> Result<(), Fault> {
        let files = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, State::Kept(request)) {
                State::Written(known, Ok(files)) if known == request => files,
                State::Kept(known) if known == request => return Ok(()),
                other => {
                    *state = other;
                    return Err(not_begun(request));
                }
            }
        };
        for snapshot in files.snapshots {
            snapshot.keep().await?;
        }
        Ok(())
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_begun(request: SnapshotRequest) -> Fault {
    Fault::external(format!("no snapshot for checkpoint {} is under way here", request.number))
}

#[async_trait]
impl Handler for SnapshotHandler {
    fn name(&self) -> &'static str {
        NAME
    }

    fn actions(&self) -> Vec<(String, String)> {
        let action = |kind: &str, what: &str| (kind.to_owned(), what.to_owned());
        vec![
            action("begin", "begin a snapshot of the shards and write its files"),
            action("written", "the files of a snapshot, once they are written"),
            action("keep", "a checkpoint has the files"),
        ]
    }

    async fn action(&self, caller: &Caller, kind: &str, body: Bytes) -> Result<Bytes, Fault> {
        if caller.identity.is_none() {
            return Err(Fault::user(format!("{NAME}.{kind} is for trainers of the run")));
        }
        let request: SnapshotRequest = json::read(NAME, kind, &body)?;
        match kind {
            "begin" => json::write(&self.begin(request).await?),
            "written" => json::write(&self.written(request)?),
            "keep" => json::write(&self.keep(request).await?),
            _ => Err(Fault::user(format!("there is no action {NAME}.{kind}"))),
        }
    }
}
