//! Makes one full checkpoint of a checkpoint and the layers below it. Everything here blocks on the store.
//!
//! The layers are read from the newest to the oldest, page by page. A key of a newer layer replaces the same key of an older one. So the
//! keys of all layers but the oldest, the full one, are in memory, and only one page of rows.

use std::collections::HashSet;
use std::io::{Read, Write};

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::UInt64Type;
use forebay_actors::{Fault, FaultKind};
use forebay_connectors::staged::{OpenFolder, fault, is_in};
use forebay_ps::Absent;

use super::folder::{CheckpointFolder, file_name};
use super::manifest::{CheckpointManifest, TableLayer, TableLayers};
use super::metrics_file::METRICS;
use super::table_rows;
use crate::model_folder::checked::{CheckedWriter, cannot_write};
use crate::model_folder::row_stream::RowStreamWriter;
use crate::model_folder::{FileEntry, absent_file};

/// Bytes of a file that are copied at once.
const PIECE: usize = 1 << 20;

/// A checkpoint that is to be compacted. Nothing is written yet.
pub struct Compaction<'a> {
    from: &'a CheckpointFolder,
    into: &'a CheckpointFolder,
    old: CheckpointManifest,
    /// The newest checkpoint of `from` when the compaction began.
    newest: Option<u64>,
    /// The number of the checkpoint to be made.
    number: u64,
    try_id: u64,
}

impl CheckpointFolder {
    /// Merges the layers of the newest checkpoint that is whole, or of checkpoint `number`, into a checkpoint whose tables have one layer.
    /// The new checkpoint gets the next number. With `to` it goes to another folder, under the number of the merged checkpoint and with all
    /// files; `to` must not have a checkpoint of this number. Returns the manifest, or `None` if the checkpoint already has one layer.
    ///
    /// The checkpoint appears whole, or not at all; older checkpoints stay. A run may write into the folder meanwhile: if it makes a
    /// checkpoint before this one is whole, this one is given up.
    ///
    /// # Errors
    /// A user fault: there is no such checkpoint, or it is damaged. `number` is not the newest and `to` is `None`: a run would continue
    /// from the older one. `to` is this folder, holds something other than checkpoints, or has one of this number. An external fault if the
    /// store fails, or a run made another checkpoint meanwhile.
    pub fn compact(&self, number: Option<u64>, to: Option<&Self>) -> Result<Option<CheckpointManifest>, Fault> {
        self.compaction(number, to)?.map(Compaction::write).transpose()
    }

    /// The first part of [`compact`](Self::compact): reads and checks the checkpoint, and writes nothing.
    ///
    /// # Errors
    /// As [`compact`](Self::compact).
    pub fn compaction<'a>(
        &'a self,
        number: Option<u64>,
        to: Option<&'a Self>,
    ) -> Result<Option<Compaction<'a>>, Fault> {
        to.map_or(Ok(()), |to| self.check_other(to))?;
        let newest = self.numbers()?.last().copied();
        let old = self.to_compact(number, to).map_err(|fault| self.outrun(newest, fault))?;
        if to.is_none() && old.tables.iter().all(|table| table.layers.len() < 2) {
            return Ok(None);
        }
        let into = to.unwrap_or(self);
        let number = match to {
            Some(_) => old.number,
            None => newest.unwrap_or(old.number) + 1,
        };
        if to.is_some() && into.numbers()?.contains(&number) {
            return Err(Fault::user(format!(
                "{} has a checkpoint {number} already: name another folder with --to",
                into.folder
            ))
            .kind(FaultKind::InvalidJob));
        }
        Ok(Some(Compaction { from: self, into, old, newest, number, try_id: forebay_base::random_seed() }))
    }

    /// Fails if `to` is this folder, or not a folder for checkpoints.
    fn check_other(&self, to: &Self) -> Result<(), Fault> {
        let (here, there) = (self.folder.to_string(), to.folder.to_string());
        if is_in(&here, &there) && is_in(&there, &here) {
            return Err(Fault::user(format!(
                "--to is {there}, the folder of the checkpoint itself: leave out --to, and it gets the next number there, or name \
                 another folder"
            ))
            .kind(FaultKind::InvalidJob));
        }
        to.check_place()
    }

    /// The fault of a compaction: if the folder has a newer checkpoint than `newest`, the run may have removed files that were being read,
    /// and another try may succeed.
    fn outrun(&self, newest: Option<u64>, fault: Fault) -> Fault {
        match self.numbers() {
            Ok(now) if fault.kind != FaultKind::Drained && now.last().copied() > newest => {
                let message = format!("a run made another checkpoint in {} meanwhile; try again", self.folder);
                Fault::external(message).kind(FaultKind::Overtaken).because(fault)
            }
            _ => fault,
        }
    }

    fn to_compact(&self, number: Option<u64>, to: Option<&Self>) -> Result<CheckpointManifest, Fault> {
        let newest = self.numbers_with(number)?.pop().ok_or_else(|| self.has_none())?;
        match number {
            None => self.latest()?.ok_or_else(|| self.has_none()),
            Some(number) if number != newest && to.is_none() => Err(Fault::user(format!(
                "checkpoint {number} is not the newest in {}, and a run would continue from what is made of it instead of from \
                 {newest}: name another folder with --to",
                self.folder
            ))
            .kind(FaultKind::InvalidJob)),
            Some(number) => self.verify(number),
        }
    }
}

impl Compaction<'_> {
    /// Writes the checkpoint. If that fails, or the folder is [stopped](CheckpointFolder::stopped_by), it removes its files, and the local
    /// folders that it made for them.
    ///
    /// # Errors
    /// As [`CheckpointFolder::compact`].
    pub fn write(self) -> Result<CheckpointManifest, Fault> {
        let outrun = |fault| self.from.outrun(self.newest, fault);
        let (into, name) = (&self.into.folder, CheckpointManifest::name(self.number));
        // The folders that are still empty at the end are removed.
        let _missing = into.missing_folders();
        let manifest = self.write_files().inspect_err(|_| self.discard()).map_err(outrun)?;
        // After a fault the manifest may still exist, so its files stay.
        if into.put_new(&name, manifest.to_json()?).map_err(outrun)? {
            if let Err(e) = self.into.discard_others(self.number) {
                tracing::warn!("files of compactions that were killed may stay in {into}: {e}");
            }
            return Ok(manifest);
        }
        self.discard();
        Err(Fault::external(format!("{} is there already: a run made it meanwhile; try again", into.name(&name)))
            .kind(FaultKind::Overtaken))
    }

    fn discard(&self) {
        if let Err(e) = self.into.discard(self.number, self.try_id) {
            tracing::warn!("files of the checkpoint that failed stay until the next one: {e}");
        }
    }

    /// Writes all files but the manifest.
    fn write_files(&self) -> Result<CheckpointManifest, Fault> {
        let Self { from, into, old, number, .. } = self;
        let mut tables = Vec::new();
        for layers in &old.tables {
            let files = Merge::new(self, layers)?.run()?;
            tables.push(TableLayers { layers: vec![TableLayer { checkpoint: *number, files }], ..layers.clone() });
        }
        let (mut dense, mut kept, mut metrics) = (old.dense.clone(), old.kept.clone(), old.metrics.clone());
        if !std::ptr::eq(*from, *into) {
            let copy = |entry: &FileEntry, name: &str| copy(&from.folder, entry, &into.folder, &self.file_name(name));
            for (what, files) in [("dense", &mut dense), ("kept", &mut kept)] {
                for (part, entry) in files.iter_mut().enumerate() {
                    *entry = copy(entry, &format!("{what}-{part:04}.safetensors"))?;
                }
            }
            if let Some(entry) = &mut metrics {
                *entry = copy(entry, METRICS)?;
            }
        }
        into.folder.check_not_stopped()?;
        let manifest = CheckpointManifest::new(*number, old.job.clone(), old.position.clone(), tables, dense);
        let (start, types, lists) = (old.start, old.types.clone(), old.lists.clone());
        Ok(CheckpointManifest { kept, metrics, start, types, lists, ..manifest })
    }

    fn file_name(&self, what: &str) -> String {
        file_name(self.number, self.try_id, what)
    }
}

/// One table.
struct Merge<'a> {
    from: &'a OpenFolder,
    into: &'a OpenFolder,
    layers: &'a TableLayers,
    /// Keys that the layers so far have, with or without a row.
    known: HashSet<u64>,
    /// As many writers as the oldest layer has files of rows.
    rows: Vec<RowStreamWriter>,
    absent: Option<RowStreamWriter>,
}

impl<'a> Merge<'a> {
    fn new(compaction: &'a Compaction, layers: &'a TableLayers) -> Result<Self, Fault> {
        let (from, into) = (&compaction.from.folder, &compaction.into.folder);
        let config = &layers.config;
        config.check()?;
        let name = |what: &str, part| compaction.file_name(&format!("{}{what}-{part:04}.arrow", config.name));
        let oldest = layers.layers.first().map_or(1, |layer| layer.files.iter().filter(|file| is_rows(file)).count());
        let rows = (0..oldest.max(1))
            .map(|part| table_rows::begin(into, &name("", part), config))
            .collect::<Result<_, _>>()?;
        let absent = match table_rows::has_usages(config) {
            true => {
                let name = name("-absent", 0);
                Some(absent_file::begin(CheckedWriter::new(into.create(&name)?), &name)?)
            }
            false => None,
        };
        Ok(Self { from, into, layers, known: HashSet::new(), rows, absent })
    }

    fn run(mut self) -> Result<Vec<FileEntry>, Fault> {
        let all = &self.layers.layers;
        for (at, layer) in all.iter().enumerate().rev() {
            let oldest = at == 0;
            // In a layer, a key that is in both kinds of files has a row.
            for (part, file) in layer.files.iter().filter(|file| is_rows(file)).enumerate() {
                self.rows_of(file, part, oldest)?;
            }
            for file in layer.files.iter().filter(|file| !is_rows(file)) {
                self.absent_of(file, oldest)?;
            }
        }
        let cells = self.cells();
        let rows = self.rows.into_iter().map(RowStreamWriter::finish);
        let with_cells = |(file, cells): (Result<_, _>, _)| file.map(|file| FileEntry { cells, ..file });
        rows.zip(cells).map(with_cells).chain(self.absent.map(absent_file::finish)).collect()
    }

    /// The cells of each file of rows. `None` if a layer has other shards than the oldest one, because then each file has keys of all
    /// cells.
    fn cells(&self) -> Vec<Option<(u32, u32)>> {
        let of_layer =
            |layer: &TableLayer| layer.files.iter().filter(|file| is_rows(file)).map(|file| file.cells).collect();
        let mut layers = self.layers.layers.iter().map(of_layer);
        let oldest: Vec<_> = layers.next().unwrap_or_default();
        if layers.all(|layer: Vec<_>| layer == oldest) && oldest.len() == self.rows.len() {
            return oldest;
        }
        vec![None; self.rows.len()]
    }

    /// Takes the rows of a file whose keys no newer layer has. `last`: its keys are not looked up later.
    fn rows_of(&mut self, file: &FileEntry, part: usize, last: bool) -> Result<(), Fault> {
        let at = part % self.rows.len();
        table_rows::stream(self.from, file, &self.layers.config)?.each(|batch| {
            let keys = batch.column(0).as_primitive::<UInt64Type>().values();
            let new: BooleanArray = match last {
                true => keys.iter().map(|key| Some(!self.known.contains(key))).collect(),
                false => keys.iter().map(|key| Some(self.known.insert(*key))).collect(),
            };
            let kept = filtered(&batch, &new)?;
            match kept.num_rows() {
                0 => self.into.check_not_stopped(),
                _ => self.rows[at].write(&kept),
            }
        })
    }

    /// Takes the counts of a file whose keys no newer layer has, and remembers the removed keys. A key may be in a file twice: first as
    /// removed, later with the count that started again.
    fn absent_of(&mut self, file: &FileEntry, last: bool) -> Result<(), Fault> {
        let (known, writer) = (&mut self.known, &mut self.absent);
        let mut removed = Vec::new();
        absent_file::pages(self.from, file, |mut page: Vec<Absent>| {
            removed.extend(page.iter().filter(|absent| absent.count == 0 && !last).map(|absent| absent.key));
            let mut new = |key| if last { !known.contains(&key) } else { known.insert(key) };
            page.retain(|absent| absent.count > 0 && new(absent.key));
            match writer {
                Some(writer) if !page.is_empty() => writer.write(&absent_file::batch(&page)?),
                _ => Ok(()),
            }
        })?;
        known.extend(removed);
        Ok(())
    }
}

fn is_rows(file: &FileEntry) -> bool {
    file.absent.is_none()
}

fn filtered(batch: &RecordBatch, kept: &BooleanArray) -> Result<RecordBatch, Fault> {
    if kept.true_count() == batch.num_rows() {
        return Ok(batch.clone());
    }
    filter_record_batch(batch, kept).map_err(|e| Fault::internal("rows of a layer cannot be selected").because(e))
}

/// Copies a file to another folder.
fn copy(from: &OpenFolder, entry: &FileEntry, into: &OpenFolder, name: &str) -> Result<FileEntry, Fault> {
    let (mut file, mut piece) = (from.reader(&entry.path)?, vec![0; PIECE]);
    let mut copy = CheckedWriter::new(into.create(name)?);
    loop {
        let read = file.read(&mut piece).map_err(|e| fault(from.name(&entry.path), "cannot read", e))?;
        if read == 0 {
            return copy.finish(name, None);
        }
        copy.write_all(&piece[..read]).map_err(|e| cannot_write(copy.name(), e))?;
    }
}
