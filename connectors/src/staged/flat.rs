//! A staged folder in a store without folders and renames, such as S3 or memory.
//!
//! No object appears before all are uploaded. Every upload is held open and completed at the end, in the order in which
//! the files were made; the last one after all others. The last one makes the folder valid (a model's manifest, or
//! `_SUCCESS`). When a folder is replaced, that object is deleted first: a process that is killed leaves a folder that is
//! not valid, never a mixture that is.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_actors::Fault;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt};

use super::error::made_meanwhile;
use super::folder::StoreFolder;
use crate::store_error::store_fault;

/// Uploads that are completed at once.
const AT_ONCE: usize = 16;

/// A file whose bytes are all in the store, which does not show it yet.
#[derive(Debug)]
pub(super) struct PendingUpload {
    pub(super) path: Path,
    pub(super) upload: Box<dyn MultipartUpload>,
}

/// The uploads that writers have finished.
pub(super) type PendingUploads = Arc<Mutex<Vec<PendingUpload>>>;

/// The uploads of the objects of a folder; dropping it before [`Self::publish`] gives all of them up.
pub(super) struct Flat {
    pub(super) place: StoreFolder,
    pub(super) pending: PendingUploads,
    replace: bool,
}

impl Flat {
    pub(super) fn begin(place: StoreFolder, replace: bool) -> Self {
        Self { place, pending: PendingUploads::default(), replace }
    }

    fn take(&self) -> Vec<PendingUpload> {
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes all objects visible.
    pub(super) fn publish(self) -> Result<(), Fault> {
        let place = self.place.clone();
        let old = self.place.wait(async move {
            let all = place.store.list(Some(&place.path)).map_ok(|meta| meta.location).try_collect::<Vec<_>>().await;
            all.map_err(|e| store_fault(&format!("cannot look into `{}`", place.name), e))
        })?;
        if !old.is_empty() && !self.replace {
            return Err(made_meanwhile(&self.place.name));
        }
        let (place, mut held) = (self.place.clone(), self.take());
        let Some(mark) = held.pop() else {
            return Err(Fault::internal("a folder without a file is published"));
        };
        self.place.wait(async move {
            let store = &place.store;
            let new: HashSet<Path> = held.iter().chain([&mark]).map(|held| held.path.clone()).collect();
            let done = async {
                if old.contains(&mark.path) {
                    store.delete(&mark.path).await?;
                }
                complete(store, held).await?;
                let stale = old.iter().filter(|path| !new.contains(*path)).cloned().collect();
                delete(store, stale).await
            };
            let failed = match done.await {
                Ok(()) => match complete(store, vec![mark]).await {
                    Ok(()) => return Ok(()),
                    Err(e) => e,
                },
                Err(e) => {
                    abort([mark]).await;
                    e
                }
            };
            if let Err(e) = delete(store, new.into_iter().collect()).await {
                tracing::warn!(path = place.name, error = %e, "objects of a folder that was not finished stay behind");
            }
            let fault = store_fault(&format!("cannot finish `{}`", place.name), failed);
            Err(if old.is_empty() {
                fault
            } else {
                fault.followed_by("; the folder that it was to replace is lost, write it again")
            })
        })
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        let held = self.take();
        if !held.is_empty() {
            let _ = self.place.wait(async move {
                abort(held).await;
                Ok(())
            });
        }
    }
}

/// Completes uploads; if one fails, gives up the others and deletes those that are complete.
async fn complete(store: &Arc<dyn ObjectStore>, held: Vec<PendingUpload>) -> object_store::Result<()> {
    let mut ended = stream::iter(held)
        .map(|mut held| async move { (held.upload.complete().await.map(drop), held) })
        .buffer_unordered(AT_ONCE);
    let (mut complete, mut result) = (Vec::new(), Ok(()));
    while let Some((end, held)) = ended.next().await {
        match end {
            Ok(()) => complete.push(held.path),
            Err(e) => {
                abort([held]).await;
                result = Err(e);
            }
        }
    }
    if result.is_err()
        && let Err(e) = delete(store, complete).await
    {
        tracing::warn!(error = %e, "objects of a folder that was not finished stay behind");
    }
    result
}

/// Deletes all objects of a folder, in any order.
pub(super) async fn remove(folder: &StoreFolder) -> object_store::Result<()> {
    let all = folder.store.list(Some(&folder.path)).map_ok(|meta| meta.location).try_collect().await?;
    delete(&folder.store, all).await
}

async fn delete(store: &Arc<dyn ObjectStore>, paths: Vec<Path>) -> object_store::Result<()> {
    let paths = stream::iter(paths).map(Ok).boxed();
    let gone = |deleted| if matches!(deleted, Err(Error::NotFound { .. })) { Ok(()) } else { deleted.map(drop) };
    store.delete_stream(paths).map(gone).try_collect().await
}

/// Gives uploads up, as far as the store lets.
async fn abort(held: impl IntoIterator<Item = PendingUpload>) {
    for mut held in held {
        if let Err(e) = held.upload.abort().await {
            tracing::warn!(path = %held.path, error = %e, "cannot give an upload up: its parts may stay in the store");
        }
    }
}
