//! Writes and reads dense parameters as safetensors. Blocks on the store.

use std::collections::BTreeMap;
use std::io::Write;

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;
use forebay_models::NamedTensor;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::checked::{self, CheckedWriter, FileEntry, cannot_write};

/// The type, the shape and the bytes (little-endian) of a tensor.
pub(crate) type TensorBytes = (Dtype, Vec<usize>, Vec<u8>);

pub(crate) fn write(tensors: &[NamedTensor], writer: CheckedWriter, path: &str) -> Result<FileEntry, Fault> {
    let bytes = |t: &NamedTensor| t.data.iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensors = tensors.iter().map(|t| (t.name.clone(), (Dtype::F32, t.shape.clone(), bytes(t))));
    write_tensors("dense parameters", &tensors.collect(), writer, path)
}

/// Writes tensors by their names; faults call them `what`.
pub(crate) fn write_tensors(
    what: &str,
    tensors: &BTreeMap<String, TensorBytes>,
    mut writer: CheckedWriter,
    path: &str,
) -> Result<FileEntry, Fault> {
    let views: Result<BTreeMap<&str, TensorView<'_>>, _> = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?)))
        .collect();
    let file = views
        .and_then(|views| safetensors::serialize(views, None))
        .map_err(|e| Fault::internal(format!("{what} cannot be written as safetensors")).because(e))?;
    writer.write_all(&file).map_err(|e| cannot_write(writer.name(), e))?;
    writer.finish(path, None)
}

/// # Errors
/// A user fault that names the file if it is damaged, or no file of dense parameters.
pub(crate) fn read(folder: &OpenFolder, entry: &FileEntry) -> Result<Vec<NamedTensor>, Fault> {
    let wrong = |what: String| Fault::user(format!("{}: {what}", folder.name(&entry.path)));
    let bytes = checked::bytes(folder, entry)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("not a safetensors file: {e}")))?;
    file.iter()
        .map(|(name, view)| {
            if view.dtype() != Dtype::F32 {
                return Err(wrong(format!("tensor `{name}` is {:?}, expected F32", view.dtype())));
            }
            let data = view
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().expect("a chunk of four bytes")))
                .collect();
            Ok(NamedTensor { name: name.to_owned(), shape: view.shape().to_vec(), data })
        })
        .collect()
}
