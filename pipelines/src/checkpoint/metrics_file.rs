//! The running metrics of the trainer that leads, as safetensors: the report of a resumed run continues from them. Everything here
//! blocks on the store.
//!
//! - `counts`, uint64 `[2]`: rows and steps of this trainer.
//! - `logloss`, float64 `[2]`: the running sums of losses and of weights; their quotient is the running logloss.
//! - `auc.positive` and `auc.negative`, float64 `[4096]`: a sum for each bucket of scores. `auc.weight`, float64 `[1]`: what a new row
//!   weighs.

use std::collections::BTreeMap;

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;
use forebay_models::RunningAuc;
use safetensors::tensor::{Dtype, SafeTensors};

use super::folder::{CheckpointFolder, file_name};
use crate::metrics::running_metrics::RunningMetrics;
use crate::model_folder::FileEntry;
use crate::model_folder::checked::{self, CheckedWriter};
use crate::model_folder::dense_file::{self, TensorBytes};

/// The end of the file's name, after number and try.
pub(super) const METRICS: &str = "metrics.safetensors";

fn of_f64(values: &[f64]) -> TensorBytes {
    (Dtype::F64, vec![values.len()], values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

pub(crate) fn write(
    metrics: &RunningMetrics,
    folder: &OpenFolder,
    number: u64,
    try_id: u64,
) -> Result<FileEntry, Fault> {
    let RunningMetrics { rows, steps, loss, weight, auc } = metrics;
    let counts = [*rows, *steps].iter().flat_map(|value| value.to_le_bytes()).collect();
    let ([positive, negative], row_weight) = auc.counted();
    let tensors: BTreeMap<String, TensorBytes> = [
        ("counts", (Dtype::U64, vec![2], counts)),
        ("logloss", of_f64(&[*loss, *weight])),
        ("auc.positive", of_f64(positive)),
        ("auc.negative", of_f64(negative)),
        ("auc.weight", of_f64(&[row_weight])),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into();
    let name = file_name(number, try_id, METRICS);
    dense_file::write_tensors("running metrics", &tensors, CheckedWriter::new(folder.create(&name)?), &name)
}

/// # Errors
/// A user fault that names the file if it is damaged, or has other tensors.
pub(crate) fn read(folder: &CheckpointFolder, entry: &FileEntry) -> Result<RunningMetrics, Fault> {
    let folder = &folder.folder;
    let wrong = |what: String| Fault::user(format!("{}: {what}", folder.name(&entry.path)));
    let bytes = checked::bytes(folder, entry)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("not a safetensors file: {e}")))?;
    let tensor = |name: &str, dtype: Dtype, values: Option<usize>| -> Result<Vec<[u8; 8]>, Fault> {
        let view = file.tensor(name).map_err(|_| wrong(format!("it lacks the tensor `{name}`")))?;
        let found = view.data().as_chunks::<8>().0;
        if view.dtype() != dtype || values.is_some_and(|values| found.len() != values) {
            let (found, shape) = (view.dtype(), view.shape());
            let values = values.map_or(String::new(), |values| format!(" [{values}]"));
            return Err(wrong(format!("tensor `{name}` is {found:?} {shape:?}, expected {dtype:?}{values}")));
        }
        Ok(found.to_vec())
    };
    let floats = |name: &str, values: Option<usize>| -> Result<Vec<f64>, Fault> {
        let values: Vec<f64> = tensor(name, Dtype::F64, values)?.into_iter().map(f64::from_le_bytes).collect();
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(wrong(format!("tensor `{name}` has numbers that are not finite"))),
        }
    };
    let counts = tensor("counts", Dtype::U64, Some(2))?;
    let (logloss, row_weight) = (floats("logloss", Some(2))?, floats("auc.weight", Some(1))?);
    let mut auc = RunningAuc::default();
    if !auc.restore([floats("auc.positive", None)?, floats("auc.negative", None)?], row_weight[0]) {
        return Err(wrong("the sums of the AUC are of other buckets".into()));
    }
    let [rows, steps] = [0, 1].map(|at| u64::from_le_bytes(counts[at]));
    Ok(RunningMetrics { rows, steps, loss: logloss[0], weight: logloss[1], auc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;

    #[test]
    fn they_go_on_to_the_bit_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(dir.path().to_str().unwrap(), &Context::default()).unwrap();
        let mut metrics = RunningMetrics::default();
        let (logits, labels) = ([0.3, -1.0, 2.0, 0.1], [1.0, 0.0, 1.0, 0.0]);
        metrics.step(5, 0.7, &logits, &labels, Some(&[0.1, 2.0, 0.3, 1.0]));
        let entry = write(&metrics, &folder.folder, 7, 0xabcd).unwrap();
        assert_eq!(entry.path, "000007-0000abcd-metrics.safetensors");
        let mut back = read(&folder, &entry).unwrap();
        for metrics in [&mut metrics, &mut back] {
            metrics.step(4, 0.4, &logits, &labels, None);
        }
        assert_eq!(format!("{back:?}"), format!("{metrics:?}"));

        let at = dir.path().join(&entry.path);
        let bytes = std::fs::read(&at).unwrap();
        let said = |from: &[u8], to: &[u8]| {
            let mut bytes = bytes.clone();
            let found = bytes.windows(from.len()).position(|part| part == from).unwrap();
            bytes[found..found + to.len()].copy_from_slice(to);
            std::fs::write(&at, &bytes).unwrap();
            let xxh3 = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&bytes));
            read(&folder, &FileEntry { xxh3, ..entry.clone() }).unwrap_err().to_string()
        };
        assert!(said(b"\"counts\"", b"\"counta\"").contains("it lacks the tensor `counts`"));
        assert!(said(b"\"U64\"", b"\"I64\"").contains("tensor `counts` is I64 [2], expected U64 [2]"));
        std::fs::write(&at, &bytes[..100]).unwrap();
        assert!(read(&folder, &entry).unwrap_err().to_string().contains("is damaged: 100 bytes, expected"));
    }
}
