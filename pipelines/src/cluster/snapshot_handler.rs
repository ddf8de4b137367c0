//! The ps's request handler for snapshots: it begins them when the trainer asks, and writes their files on a thread of its own while the
//! shards go on serving.

use std::sync::atomic::{AtomicU64, Ordering};
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
use super::snapshot_turns::SnapshotTurns;
use crate::checkpoint::{CheckpointFolder, CutPlan, file_name, write_dense, write_shards};
use crate::model_folder::FileEntry;

/// Begins snapshots of the shards and of the dense block of this process, and writes them.
pub(crate) struct SnapshotHandler {
    folder: CheckpointFolder,
    rank: u32,
    table: TableClient,
    dense: Option<DenseBlock>,
    turns: Arc<Mutex<Turns>>,
    /// Bytes that the store has taken.
    taken: Arc<AtomicU64>,
}

type Turns = SnapshotTurns<Files>;

/// What one snapshot wrote. If it is dropped before the snapshots are kept, the next incremental snapshot has these rows again.
struct Files {
    files: Vec<FileEntry>,
    dense: Option<FileEntry>,
    snapshots: Vec<ShardSnapshot>,
}

/// Reports the end of the writing of a snapshot, which the trainer waits for. If it is dropped before the end, because its thread cannot
/// start or panics, it reports a fault.
struct Writing {
    turns: Arc<Mutex<Turns>>,
    request: SnapshotRequest,
    written: Option<Result<Files, Fault>>,
}

impl Writing {
    fn end(mut self, written: Result<Files, Fault>) {
        self.written = Some(written);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let written = self.written.take();
        let written = written.unwrap_or_else(|| {
            Err(Fault::external("the thread that writes a snapshot ended before the snapshot was written"))
        });
        lock(&self.turns).wrote(self.request, written);
    }
}

impl SnapshotHandler {
    pub(crate) fn new(folder: CheckpointFolder, rank: u32, table: TableClient, dense: Option<DenseBlock>) -> Self {
        let taken = Arc::<AtomicU64>::default();
        let folder = CheckpointFolder { folder: folder.folder.counted_by(Arc::clone(&taken)) };
        Self { folder, rank, table, dense, turns: Arc::default(), taken }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        lock(&self.turns)
    }

    /// A request that comes twice has begun already.
    async fn begin(&self, request: SnapshotRequest) -> Result<(), Fault> {
        if !self.turns().begin(request)? {
            return Ok(());
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
                self.turns().cannot_begin();
                return Err(fault);
            }
        };
        self.turns().begun(request);
        let (folder, table, rank) = (self.folder.clone(), self.table.clone(), self.rank);
        let writing = Writing { turns: Arc::clone(&self.turns), request, written: None };
        let write = move || {
            let plan: CutPlan = request.plan();
            let written = write_shards(&mut snapshots, &table, &folder.folder, plan).and_then(|files| {
                let name = file_name(plan.number, plan.try_id, &format!("dense-{rank:04}.safetensors"));
                let dense = dense.map(|dense| write_dense(&dense, &folder.folder, &name)).transpose()?;
                Ok(Files { files, dense, snapshots })
            });
            writing.end(written);
        };
        std::thread::Builder::new()
            .name("snapshot".into())
            .spawn(write)
            .map(drop)
            .map_err(|e| Fault::no_thread("a thread that writes a snapshot", e))
    }

    fn written(&self, request: SnapshotRequest) -> Result<WrittenReply, Fault> {
        Ok(match self.turns().written(request)? {
            Some(Files { files, dense, .. }) => WrittenReply::Written { files: files.clone(), dense: dense.clone() },
            None => WrittenReply::Writing { taken: self.taken.load(Ordering::SeqCst) },
        })
    }

    async fn keep(&self, request: SnapshotRequest) -> Result<(), Fault> {
        let files = self.turns().keep(request)?;
        let Some(files) = files else { return Ok(()) };
        for snapshot in files.snapshots {
            snapshot.keep().await?;
        }
        Ok(())
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A bug: the snapshot counted as being written forever, and the trainer kept asking.
    #[test]
    fn a_snapshot_whose_thread_ends_before_it_is_written_is_a_fault_and_the_next_one_may_begin() {
        let turns = Arc::<Mutex<Turns>>::default();
        let request = |number| SnapshotRequest { number, try_id: 70 + number, full: true };
        assert!(lock(&turns).begin(request(1)).unwrap());
        lock(&turns).begun(request(1));
        let writing = Writing { turns: Arc::clone(&turns), request: request(1), written: None };
        assert!(lock(&turns).written(request(1)).unwrap().is_none());
        let panics = std::thread::spawn(move || {
            let _writing = writing;
            panic!("planted");
        });
        assert!(panics.join().is_err());
        let fault = lock(&turns).written(request(1)).err().unwrap();
        assert!(fault.to_string().contains("the thread that writes a snapshot"), "{fault}");
        assert!(lock(&turns).begin(request(2)).unwrap());
    }
}
