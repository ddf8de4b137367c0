//! The store of local files. Opening a pipe or a device may wait forever, so such a file is refused instead: one may have taken the place
//! of a file of rows since the files were listed.

use std::fmt;
use std::fs;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_actors::FaultKind;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use crate::store_error::Explained;

/// The local disk from `/` on.
#[derive(Debug, Default)]
pub(crate) struct LocalFiles(LocalFileSystem);

impl LocalFiles {
    /// Fails if a pipe, a socket or a device is there. What is missing is left to the open that follows.
    async fn check(&self, location: &Path) -> Result<()> {
        let path = self.0.path_to_filesystem(location)?;
        let is_special = move || fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir());
        let is_special = match tokio::runtime::Handle::try_current() {
            Ok(runtime) => runtime.spawn_blocking(is_special).await?,
            Err(_) => is_special(),
        };
        if !is_special {
            return Ok(());
        }
        let explained = Explained {
            text: "a pipe, a socket or a device is in its place: data is read several times and at any place, so write it to a file"
                .into(),
            users: true,
            kind: FaultKind::Other,
            waited: false,
            source: None,
        };
        Err(Error::Generic { store: "LocalFileSystem", source: Box::new(explained) })
    }
}

impl fmt::Display for LocalFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for LocalFiles {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(location).await?;
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check(location).await?;
        self.0.get_ranges(location, ranges).await
    }

    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::process::Command;
    use std::time::Duration;

    use forebay_actors::Domain;

    use crate::file::DataFile;
    use crate::stores::Stores;

    /// A bug: the reader waited for a program that writes to the pipe.
    #[tokio::test]
    async fn a_file_that_became_a_pipe_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("rows.parquet");
        std::fs::write(&at, [7; 100]).unwrap();
        let (store, path) = Stores::default().open(&at.display().to_string()).unwrap();
        let file =
            DataFile { store, path, size: 100, e_tag: None, name: "rows".into(), partitions: Default::default() };
        assert_eq!(file.read(10..20).await.unwrap().len(), 10);
        std::fs::remove_file(&at).unwrap();
        assert!(Command::new("mkfifo").arg(&at).status().unwrap().success());
        let read = tokio::time::timeout(Duration::from_secs(30), file.read(10..20)).await;
        // A reader that waits goes on, so that the test fails and does not hang.
        drop(OpenOptions::new().read(true).write(true).open(&at).unwrap());
        let fault = read.expect("the reader waits for a program that writes").unwrap_err();
        let said = fault.to_string();
        assert!(
            fault.domain == Domain::User && said.contains("a pipe, a socket or a device is in its place"),
            "{said}"
        );
        assert!(said.starts_with("cannot read `rows`, bytes 10 to 20"), "{said}");
        std::fs::remove_file(&at).unwrap();
        let gone = file.read(10..20).await.unwrap_err().to_string();
        assert!(gone.contains("it is not there (any more)"), "{gone}");
    }
}
