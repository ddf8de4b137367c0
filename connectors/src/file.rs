//! One file of a data set, and ranges of it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_actors::Fault;
use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, GetResult, ObjectStore, ObjectStoreExt};

use crate::partition::Partitions;
use crate::store_error::store_fault;

/// One file to read.
#[derive(Clone, Debug)]
pub struct DataFile {
    /// The store it lies in.
    pub store: Arc<dyn ObjectStore>,
    /// Its path in the store.
    pub path: Path,
    /// Its size in bytes when it was listed.
    pub size: u64,
    /// Identifies this version of the file, if the store has versions: a read of a file that was replaced fails.
    pub e_tag: Option<String>,
    /// Its path as messages print it.
    pub name: String,
    /// The folders `column=value` of the file, below the named folder or the fixed part of the glob; and the folders above.
    pub partitions: Partitions,
}

impl DataFile {
    /// Whether it lies in a folder `column=value` of this column.
    pub(crate) fn is_below(&self, column: &str) -> bool {
        self.partitions.get(column).or(self.partitions.get_above(column)).is_some()
    }

    /// Reads a range, all of it, from the version that was listed. Cancel safe.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes, Fault> {
        let what = || format!("cannot read `{}`, bytes {} to {}", self.name, range.start, range.end);
        let bytes = self.get(range.clone()).await.map_err(|e| store_fault(&what(), e))?;
        if bytes.len() as u64 != range.end - range.start {
            return Err(Fault::external(format!(
                "{}: only {} bytes came: the file became shorter while it was read",
                what(),
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    /// The bytes of a range that the store has, from the version that was listed. Cancel safe.
    pub(crate) async fn get(&self, range: Range<u64>) -> object_store::Result<Bytes> {
        let options = GetOptions { range: Some(range.into()), if_match: self.e_tag.clone(), ..GetOptions::default() };
        self.bytes_of(self.store.get_opts(&self.path, options).await?).await
    }

    /// The bytes of an open range. The local store compares the version only when it opens a file, so the file may have changed since.
    async fn bytes_of(&self, open: GetResult) -> object_store::Result<Bytes> {
        match open.bytes().await {
            Err(error @ StoreError::Generic { store: "LocalFileSystem", .. }) => {
                Err(self.changed().await.unwrap_or(error))
            }
            read => read,
        }
    }

    /// The error of a read, if the file is not the version that was listed. `None` if it is, or if the store does not know.
    async fn changed(&self) -> Option<StoreError> {
        let listed = self.e_tag.as_ref()?;
        let now = self.store.head(&self.path).await.ok()?.e_tag?;
        let differs = || StoreError::Precondition {
            path: self.path.to_string(),
            source: format!("{now:?} does not match {listed:?}").into(),
        };
        (now != *listed).then(differs)
    }

    /// How many line ends stand before a byte of the file.
    pub(crate) async fn lines_before(&self, offset: u64) -> Result<u64, Fault> {
        let (mut lines, mut at) = (0, 0);
        while at < offset {
            let end = offset.min(at + (4 << 20));
            lines += memchr::memchr_iter(b'\n', &self.read(at..end).await?).count() as u64;
            at = end;
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use forebay_actors::Domain;
    use object_store::local::LocalFileSystem;

    use super::*;

    /// A bug: the fault was external, so that the caller should try again, and said `Out of range of file`.
    #[tokio::test]
    async fn a_local_file_that_is_cut_while_it_is_read_is_a_changed_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a.parquet");
        std::fs::write(&at, [7; 1000]).unwrap();
        let (store, path) = (Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap()), Path::from("a.parquet"));
        let e_tag = store.head(&path).await.unwrap().e_tag;
        let (name, partitions) = ("a.parquet".to_owned(), Partitions::default());
        let file = DataFile { store, path, size: 1000, e_tag, name, partitions };
        let options = || GetOptions { range: Some((0..1000).into()), ..GetOptions::default() };

        let open = file.store.get_opts(&file.path, options()).await.unwrap();
        assert_eq!(file.bytes_of(open).await.unwrap().len(), 1000);
        let open = file.store.get_opts(&file.path, options()).await.unwrap();
        std::fs::write(&at, [7; 500]).unwrap();
        let fault = store_fault("cannot read `a.parquet`", file.bytes_of(open).await.unwrap_err());
        assert!(fault.domain == Domain::User && fault.to_string().contains("replaced or changed"), "{fault}");
    }
}
