//! Writes and reads dense parameters as safetensors. Blocks on the store.

use std::collections::BTreeMap;
use std::io::Write;

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;
use forebay_models::NamedTensor;
use safetensors::tensor::{Dtype, Metadata, SafeTensorError, SafeTensors, TensorInfo, TensorView};

use super::checked::{self, CheckedWriter, FileEntry, cannot_write};

/// The type, the shape and the bytes (little-endian) of a tensor.
pub(crate) type TensorBytes = (Dtype, Vec<usize>, Vec<u8>);

/// Numbers whose bytes are written at once.
const PIECE: usize = 1 << 16;

/// Writes dense parameters piece by piece, without a copy of them all: they may take most of the memory.
pub(crate) fn write(tensors: &[NamedTensor], mut writer: CheckedWriter, path: &str) -> Result<FileEntry, Fault> {
    // safetensors orders tensors of one type by name.
    let tensors: BTreeMap<&str, &NamedTensor> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let wrong = |e: SafeTensorError| Fault::internal("dense parameters cannot be written as safetensors").because(e);
    let header = header(&tensors).map_err(wrong)?;
    writer.write_all(&header).map_err(|e| cannot_write(writer.name(), e))?;
    let mut piece = Vec::with_capacity(PIECE * size_of::<f32>());
    for values in tensors.values().flat_map(|tensor| tensor.data.chunks(PIECE)) {
        piece.clear();
        piece.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        writer.write_all(&piece).map_err(|e| cannot_write(writer.name(), e))?;
    }
    writer.finish(path, None)
}

/// The header of a safetensors file of these tensors: the length of the JSON, then the names, types, shapes and places as JSON, with spaces
/// up to a multiple of eight bytes.
fn header(tensors: &BTreeMap<&str, &NamedTensor>) -> Result<Vec<u8>, SafeTensorError> {
    let mut end = 0;
    let info = |(&name, tensor): (&&str, &&NamedTensor)| {
        let start = end;
        end += tensor.data.len() * size_of::<f32>();
        let info = TensorInfo { dtype: Dtype::F32, shape: tensor.shape.clone(), data_offsets: (start, end) };
        (name.to_owned(), info)
    };
    let mut json = serde_json::to_vec(&Metadata::new(None, tensors.iter().map(info).collect())?)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json[..]].concat())
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

#[cfg(test)]
mod tests {
    use forebay_connectors::staged::Folder;

    use super::*;

    #[test]
    fn dense_parameters_that_are_written_in_pieces_have_the_bytes_that_safetensors_writes() {
        let tensor = |name: &str, shape: &[usize]| {
            let data = (0..shape.iter().product::<usize>()).map(|i| i as f32 - 0.5).collect();
            NamedTensor { name: name.into(), shape: shape.into(), data }
        };
        let tensors =
            [tensor("b", &[PIECE + 3]), tensor("a \"'\u{e9}", &[2, 3]), tensor("no", &[0]), tensor("c", &[1])];
        let bytes =
            |tensor: &NamedTensor| tensor.data.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let bytes: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
        let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
            (tensor.name.as_str(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap())
        });
        let expected = safetensors::serialize(views, None).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::from(dir.path()).open().unwrap();
        let entry = write(&tensors, CheckedWriter::new(folder.create("dense").unwrap()), "dense").unwrap();
        assert!(std::fs::read(dir.path().join("dense")).unwrap() == expected);
        let mut read = read(&folder, &entry).unwrap();
        read.sort_by_key(|tensor| tensors.iter().position(|written| written.name == tensor.name));
        assert!(read == tensors);
    }
}
