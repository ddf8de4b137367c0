//! One file of a data set, and ranges of it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_actors::Fault;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};

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
    /// Tells this version of it from any other, if the store knows: a read of a file that was replaced fails.
    pub e_tag: Option<String>,
    /// Its path as messages print it.
    pub name: String,
    /// The folders `column=value` that it lies in, below the folder that was named or the fixed part of the glob; and those above.
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

    /// What the store has of a range, from the version that was listed. Cancel safe.
    pub(crate) async fn get(&self, range: Range<u64>) -> object_store::Result<Bytes> {
        let options = GetOptions { range: Some(range.into()), if_match: self.e_tag.clone(), ..GetOptions::default() };
        self.store.get_opts(&self.path, options).await?.bytes().await
    }
}
