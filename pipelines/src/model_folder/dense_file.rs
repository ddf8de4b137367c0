//! Writes and reads dense parameters as safetensors. Blocks on the store.

use std::collections::BTreeMap;
use std::io::Write;

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;
use forebay_models::NamedTensor;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::checked::{CheckedWriter, FileEntry, cannot_write};

pub(crate) fn write(tensors: &[NamedTensor], mut writer: CheckedWriter, path: &str) -> Result<FileEntry, Fault> {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| t.data.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views: Result<BTreeMap<&str, TensorView<'_>>, _> = tensors
        .iter()
        .zip(&bytes)
        .map(|(t, b)| Ok((t.name.as_str(), TensorView::new(Dtype::F32, t.shape.clone(), b)?)))
        .collect();
    let file = views
        .and_then(|views| safetensors::serialize(views, None))
        .map_err(|e| Fault::internal("dense parameters cannot be written as safetensors").because(e))?;
    writer.write_all(&file).map_err(|e| cannot_write(writer.name(), e))?;
    writer.finish(path, None)
}

pub(crate) fn read(folder: &OpenFolder, entry: &FileEntry) -> Result<Vec<NamedTensor>, Fault> {
    let wrong = |what: String| Fault::user(format!("{}: {what}", folder.name(&entry.path)));
    let bytes = folder.bytes(&entry.path, entry.bytes)?;
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
