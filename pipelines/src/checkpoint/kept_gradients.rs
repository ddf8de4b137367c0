//! The gradients that an exact order keeps at a cut, as safetensors: one file of each trainer. Everything here blocks on the store.
//!
//! The batches are numbered from 0 in the order of their pushes. Batch 3 has the tensors
//!
//! - `3.batch`, uint64 `[5]`: epoch, window, index, step and rows of the batch;
//! - `3.keys`, uint64 `[u]`, and `3.grads`, float32 `[u x row dim]`;
//! - `3.dense`, float32 `[P]`, or `[0]` of a batch without rows, if the dense parameters are in the ps.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_actors::{Fault, Lineage};
use forebay_batches::{BatchId, GradBatch, Ticket};
use forebay_connectors::staged::OpenFolder;
use safetensors::tensor::{Dtype, SafeTensors};

use super::folder::{CheckpointFolder, file_name};
use crate::model_folder::FileEntry;
use crate::model_folder::checked::{self, CheckedWriter};
use crate::model_folder::dense_file::{self, TensorBytes};
use crate::order::exact_order::ExactOrder;

fn of_u64(values: &[u64]) -> TensorBytes {
    (Dtype::U64, vec![values.len()], values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn of_f32(values: &[f32]) -> TensorBytes {
    (Dtype::F32, vec![values.len()], values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Writes the kept gradients of the trainer of this `rank`.
pub(crate) fn write(
    kept: &[Arc<GradBatch>],
    folder: &OpenFolder,
    number: u64,
    try_id: u64,
    rank: u32,
) -> Result<FileEntry, Fault> {
    let mut tensors = BTreeMap::new();
    for (i, batch) in kept.iter().enumerate() {
        let BatchId { epoch, window, index } = batch.id;
        let numbers = [u64::from(epoch), window, u64::from(index), batch.step, batch.samples as u64];
        tensors.insert(format!("{i}.batch"), of_u64(&numbers));
        tensors.insert(format!("{i}.keys"), of_u64(&batch.unique));
        tensors.insert(format!("{i}.grads"), of_f32(&batch.row_grads));
        if let Some(dense) = &batch.dense_grads {
            tensors.insert(format!("{i}.dense"), of_f32(dense));
        }
    }
    let name = file_name(number, try_id, &format!("kept-{rank:04}.safetensors"));
    dense_file::write_tensors("gradients", &tensors, CheckedWriter::new(folder.create(&name)?), &name)
}

/// Reads the kept gradients of the trainer of this `rank`, for rows of `row_dim` weights; none if there are no files.
///
/// # Errors
/// A user fault: another number of trainers, or a file with other tensors.
pub(crate) fn of_trainer(
    folder: &CheckpointFolder,
    files: &[FileEntry],
    rank: u32,
    row_dim: usize,
) -> Result<Vec<GradBatch>, Fault> {
    match files.get(rank as usize) {
        Some(entry) => read(&folder.folder, entry, row_dim),
        None if files.is_empty() => Ok(Vec::new()),
        None => Err(Fault::user(format!(
            "the checkpoint has the gradients that {} trainers kept, and none of trainer {rank}",
            files.len()
        ))),
    }
}

/// The gradients in one file.
pub(crate) fn read(folder: &OpenFolder, entry: &FileEntry, row_dim: usize) -> Result<Vec<GradBatch>, Fault> {
    let wrong = |what: String| Fault::user(format!("{}: {what}", folder.name(&entry.path)));
    let bytes = checked::bytes(folder, entry)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("not a safetensors file: {e}")))?;
    let tensor = |name: &str, dtype: Dtype| match file.tensor(name) {
        Ok(view) if view.dtype() == dtype => Ok(view.data().to_vec()),
        Ok(view) => Err(wrong(format!("tensor `{name}` is {:?}, expected {dtype:?}", view.dtype()))),
        Err(_) => Err(wrong(format!("it lacks the tensor `{name}`"))),
    };
    let integers = |name: &str| -> Result<Vec<u64>, Fault> {
        Ok(tensor(name, Dtype::U64)?.as_chunks::<8>().0.iter().map(|value| u64::from_le_bytes(*value)).collect())
    };
    let floats = |name: &str| -> Result<Vec<f32>, Fault> {
        Ok(tensor(name, Dtype::F32)?.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
    };
    let names = file.names();
    let batches = names.iter().filter(|name| name.ends_with(".batch")).count();
    let mut kept = Vec::with_capacity(batches);
    for i in 0..batches {
        let numbers = integers(&format!("{i}.batch"))?;
        let [epoch, window, index, step, samples] = numbers[..] else {
            return Err(wrong(format!("tensor `{i}.batch` has {} values, expected 5", numbers.len())));
        };
        let small = |what: &str, value: u64| {
            u32::try_from(value).map_err(|_| wrong(format!("tensor `{i}.batch` has the {what} {value}")))
        };
        let id = BatchId { epoch: small("epoch", epoch)?, window, index: small("index", index)? };
        let (unique, row_grads) = (integers(&format!("{i}.keys"))?, floats(&format!("{i}.grads"))?);
        if row_grads.len() != unique.len() * row_dim {
            return Err(wrong(format!(
                "tensor `{i}.grads` has {} values, expected {row_dim} for each of {} keys",
                row_grads.len(),
                unique.len()
            )));
        }
        let dense = format!("{i}.dense");
        let dense_grads = if names.iter().any(|name| **name == dense) { Some(floats(&dense)?) } else { None };
        let lineage = Lineage { epoch: id.epoch, ..Lineage::default() };
        let samples = samples as usize;
        let ticket = Ticket::free();
        kept.push(GradBatch { lineage, id, step, samples, unique, row_grads, dense_grads, ticket });
    }
    Ok(kept)
}

/// Writes the kept gradients of one of several trainers while all stand still.
#[derive(Clone)]
pub(crate) struct KeptWriter {
    pub(crate) folder: CheckpointFolder,
    pub(crate) exact: Arc<ExactOrder>,
}

impl KeptWriter {
    /// Writes the file for this try of a checkpoint.
    pub(crate) fn write(&self, number: u64, try_id: u64) -> Result<FileEntry, Fault> {
        write(&self.exact.kept(), &self.folder.folder, number, try_id, self.exact.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;

    fn batch(step: u64, dense_grads: Option<Vec<f32>>) -> Arc<GradBatch> {
        let rows = step as usize % 4;
        Arc::new(GradBatch {
            lineage: Lineage::default(),
            id: BatchId { epoch: 3, window: 1 << 35, index: step as u32 },
            step,
            samples: 7,
            unique: (0..rows as u64).map(|i| u64::MAX - i).collect(),
            row_grads: (0..rows * 2).map(|i| 0.1 + i as f32).collect(),
            dense_grads,
            ticket: Ticket::free(),
        })
    }

    #[test]
    fn they_are_read_as_they_were_written_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
        // More than ten, whose names are not in the order of their numbers.
        let mut kept: Vec<_> = (0..13).map(|step| batch(step, None)).collect();
        kept.extend([batch(13, Some(vec![f32::MIN_POSITIVE, -0.0])), batch(14, Some(Vec::new()))]);
        let entry = write(&kept, &folder.folder, 7, 0xabcd, 1).unwrap();
        assert_eq!(entry.path, "000007-0000abcd-kept-0001.safetensors");
        let files = [entry.clone(), entry.clone()];
        let back = of_trainer(&folder, &files, 1, 2).unwrap();
        assert_eq!(format!("{back:?}").replace("epoch: 3, split", "epoch: 0, split"), format!("{kept:?}"));
        assert!(of_trainer(&folder, &[], 1, 2).unwrap().is_empty());
        let said = |files: &[FileEntry], rank, dim| of_trainer(&folder, files, rank, dim).unwrap_err().to_string();
        assert!(said(&files, 2, 2).contains("gradients that 2 trainers kept, and none of trainer 2"));
        assert!(said(&files, 0, 3).contains("`1.grads` has 2 values, expected 3 for each of 1 keys"));
        let at = dir.path().join(&entry.path);
        let bytes = std::fs::read(&at).unwrap();
        // With its quotes: there is a batch 14, too.
        let (mut renamed, name) = (bytes.clone(), b"\"4.keys\"");
        let found = bytes.windows(name.len()).position(|word| word == name).unwrap();
        renamed[found + 4] = b'a';
        let signed = |bytes: &[u8]| {
            std::fs::write(&at, bytes).unwrap();
            let xxh3 = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes));
            [FileEntry { bytes: bytes.len() as u64, xxh3, ..entry.clone() }]
        };
        assert!(said(&signed(&renamed), 0, 2).contains("it lacks the tensor `4.keys`"));
        assert!(said(&signed(&bytes[..100]), 0, 2).contains("not a safetensors file"));
        assert!(said(&files, 0, 2).contains("is damaged: 100 bytes, expected"));
    }
}
