//! Writes the checkpoints of one process, one after the other: all rows, or the rows that changed since the checkpoint before. Everything
//! here blocks on the store.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;
use forebay_job::Job;
use forebay_ps::{SnapshotKind, TableConfig};
use futures::executor::block_on;

use super::cut::{Cut, CutPoint, Kept, Shards};
use super::cut_client::CutLeader;
use super::drain::IsEvaluating;
use crate::checkpoint::author::Author;
use crate::checkpoint::{
    CheckpointFolder, CheckpointManifest, CutPlan, MadeCheckpoints, TableLayer, TableLayers, dense_state, file_name,
    kept_gradients, metrics_file, table_rows,
};
use crate::columns::run_types::{RowTypes, RunTypes};
use crate::model_folder::FileEntry;

/// What the checkpoints of one run need. `start` begins to make them.
pub(crate) struct Checkpoints {
    pub(crate) folder: CheckpointFolder,
    pub(crate) author: Author,
    pub(crate) job: Job,
    pub(crate) config: TableConfig,
    pub(crate) cut_point: Arc<CutPoint>,
    pub(crate) cuts: Receiver<Result<Cut, Fault>>,
    /// Set if there are other trainers: then cuts are made through it and not at barriers.
    pub(crate) leader: Option<CutLeader>,
    /// Receives each manifest once it is published.
    pub(crate) published: Box<dyn Fn(&CheckpointManifest) + Send>,
    /// Whether the model is being evaluated: trainers stop for a checkpoint only after that.
    pub(crate) is_evaluating: IsEvaluating,
    /// The types of the feature columns.
    pub(crate) types: RunTypes,
    /// `output.model`.
    pub(crate) model: Option<OpenFolder>,
    /// Told of each checkpoint.
    pub(crate) made: MadeCheckpoints,
}

/// The state between two checkpoints: the layers that the next one builds on.
#[derive(Default)]
pub(crate) struct CheckpointWriter {
    /// The layers of the newest checkpoint, which the next incremental one builds on.
    layers: Vec<TableLayer>,
    layers_since_full: usize,
    /// The last try that failed before its manifest was written.
    failed: Option<CutPlan>,
}

/// The files of a checkpoint but the manifest.
struct Files {
    tables: Vec<FileEntry>,
    dense: Vec<FileEntry>,
    kept: Vec<FileEntry>,
    metrics: Option<FileEntry>,
}

impl CheckpointWriter {
    /// Plans the next checkpoint. Removes the files of the last failed try, because a ps may have gone on writing after the failure.
    pub(crate) fn plan(&mut self, to: &Checkpoints) -> Result<CutPlan, Fault> {
        let number = to.folder.next_number(&to.author)?;
        self.discard_failed(to);
        // A user or a compaction may have removed the files of the layers below.
        let full = self.layers.is_empty()
            || self.layers_since_full + 1 >= to.job.checkpoint.full_every
            || !to.folder.has_layers(&self.layers)?;
        let kind = if full { SnapshotKind::Full } else { SnapshotKind::Changes };
        Ok(CutPlan { number, try_id: forebay_base::random_seed(), kind })
    }

    /// Rows and bytes of the tables that the newest checkpoint wrote.
    pub(super) fn newest(&self) -> (u64, u64) {
        let newest = self.layers.last().into_iter().flat_map(|layer| &layer.files);
        newest.fold((0, 0), |(rows, bytes), file| (rows + file.rows.unwrap_or(0), bytes + file.bytes))
    }

    /// Removes the files of the last failed try, so that failed tries do not fill the disk.
    fn discard_failed(&self, to: &Checkpoints) {
        let Some(plan) = self.failed else { return };
        if let Err(fault) = to.folder.discard(plan.number, plan.try_id) {
            tracing::warn!("files of the checkpoint that failed stay until the next one: {fault}");
        }
    }

    /// Writes the tables, the dense parameters, the gradients that an exact order keeps and the running metrics.
    fn write_files(to: &Checkpoints, cut: &mut Cut) -> Result<Files, Fault> {
        let (folder, plan) = (&to.folder.folder, cut.plan);
        let (files, mut dense) = match to.cut_point.shards() {
            Shards::Here(table) => (table_rows::write_shards(&mut cut.snapshots, table, folder, plan)?, Vec::new()),
            Shards::InPs(ps) => block_on(ps.written(plan))?,
        };
        if let Some(model) = &cut.model {
            let name = file_name(plan.number, plan.try_id, "dense.safetensors");
            dense = vec![dense_state::write(model, folder, &name)?];
        }
        let kept = match &cut.kept {
            Kept::Here(kept) if to.job.train.staleness.exactly => {
                vec![kept_gradients::write(kept, folder, plan.number, plan.try_id, 0)?]
            }
            Kept::Here(_) => Vec::new(),
            Kept::Written(files) => files.clone(),
        };
        let metrics = cut.metrics.as_ref();
        let metrics =
            metrics.map(|metrics| metrics_file::write(metrics, folder, plan.number, plan.try_id)).transpose()?;
        Ok(Files { tables: files, dense, kept, metrics })
    }

    /// Makes a checkpoint of a cut.
    ///
    /// # Errors
    /// The store fails, or another run writes here. The files of this try are removed.
    pub(crate) fn write(&mut self, to: &Checkpoints, mut cut: Cut) -> Result<CheckpointManifest, Fault> {
        self.failed = Some(cut.plan);
        let (number, run) = (cut.plan.number, cut.position.run);
        let overtaken = |fault| to.folder.overtaken(number, run, fault);
        let written = Self::write_files(to, &mut cut).map_err(overtaken).inspect_err(|_| self.discard_failed(to))?;
        let Checkpoints { folder, job, config, cut_point, .. } = to;
        let Files { tables: files, dense, kept, metrics } = written;
        let Cut { plan, position, snapshots, .. } = cut;
        let full = plan.kind == SnapshotKind::Full;
        let mut layers = if full { Vec::new() } else { self.layers.clone() };
        layers.push(TableLayer { checkpoint: plan.number, files });
        let tables = vec![TableLayers { config: config.clone(), layers: layers.clone() }];
        let manifest = CheckpointManifest::new(plan.number, job.clone(), position, tables, dense);
        let RowTypes { types, lists } = to.types.get().unwrap_or_default();
        let start = to.author.start;
        let model_disk = to.model.as_ref().and_then(OpenFolder::mount_point);
        let manifest = CheckpointManifest { kept, metrics, start, types: types.0, lists, model_disk, ..manifest };
        if !folder.has_layers(&layers)? {
            self.layers.clear();
            self.discard_failed(to);
            let gone = "files of an earlier checkpoint that this one needs are gone: the next one has all rows";
            return Err(Fault::external(gone));
        }
        // From here on, the manifest may exist in spite of a fault.
        self.failed = None;
        folder.publish(&manifest)?;
        (to.published)(&manifest);
        // The next incremental checkpoint builds on these layers even if `keep` fails: a shard that keeps its snapshot then gives only
        // later changes, and a shard that does not gives these rows again.
        self.layers = layers;
        self.layers_since_full = if full { 0 } else { self.layers_since_full + 1 };
        let kept = match cut_point.shards() {
            Shards::Here(_) => snapshots.into_iter().try_for_each(|snapshot| block_on(snapshot.keep())),
            Shards::InPs(ps) => block_on(ps.keep(plan)),
        };
        if let Err(fault) = kept {
            tracing::warn!("the next checkpoint writes rows of checkpoint {} again: {fault}", plan.number);
        }
        Ok(manifest)
    }
}
