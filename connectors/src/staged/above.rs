//! The missing folders above a folder of HDFS: its first file makes them, too, and a probe that fails removes them. The probe looks for
//! them before it makes any: afterwards, an empty folder does not tell who made it.

use forebay_actors::Fault;
use object_store::ObjectStore;
use object_store::path::Path;

use super::folder::{StoreFolder, list};

/// The folders above `folder` that are not there, the lowest first. Finds nothing in a store that has no folders, or without the right to
/// list them.
pub(super) fn find(folder: &StoreFolder) -> Vec<Path> {
    if !folder.renames || folder.url.is_none() {
        return Vec::new();
    }
    let at = folder.clone();
    let found = folder.wait(async move {
        Ok(missing_above(&*at.store, &at.path).await.unwrap_or_else(|e| {
            tracing::debug!(path = %at.path, error = %e, "cannot look for the folders above");
            Vec::new()
        }))
    });
    found.unwrap_or_default()
}

/// Removes the folders above `place` that have been made since and are empty.
pub(super) fn remove(place: &StoreFolder, folders: Vec<Path>) {
    if let Err(fault) = remove_empty(place, folders) {
        tracing::debug!(place = %place.name, %fault, "folders above an output that cannot be written stay behind");
    }
}

fn remove_empty(place: &StoreFolder, folders: Vec<Path>) -> Result<(), Fault> {
    // A store of objects deletes a folder with all below it, and another process may write there.
    let store = place.stores.hdfs(place.url.as_deref().unwrap_or_default())?;
    place.wait(async move {
        for folder in folders {
            if let Err(e) = store.remove_empty_folder(&folder).await {
                // If it is not empty, the folders above it are not, either.
                tracing::debug!(path = %folder, error = %e, "a folder above an output that cannot be written stays");
                break;
            }
        }
        Ok(())
    })
}

/// The folders above `place` that are not there, the lowest first.
async fn missing_above(store: &dyn ObjectStore, place: &Path) -> object_store::Result<Vec<Path>> {
    let mut parts: Vec<_> = place.parts().collect();
    let mut missing = Vec::new();
    parts.pop();
    while !parts.is_empty() {
        let folder = Path::from_iter(parts.iter().cloned());
        parts.pop();
        let above = Path::from_iter(parts.iter().cloned());
        let is_there = list(store, &above).await?.is_some_and(|found| {
            found.common_prefixes.contains(&folder) || found.objects.iter().any(|file| file.location == folder)
        });
        if is_there {
            break;
        }
        missing.push(folder);
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt as _;
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn what_is_missing_above_a_folder_is_found_from_below() {
        let store = InMemory::new();
        store.put(&Path::from("a/file"), "1".into()).await.unwrap();
        for (place, expected) in [
            ("a/rows", &[] as &[&str]),
            ("a/b/c/rows", &["a/b/c", "a/b"]),
            ("new/rows", &["new"]),
            ("rows", &[]),
            ("a/file/rows", &[]),
        ] {
            let missing = missing_above(&store, &Path::parse(place).unwrap()).await.unwrap();
            let expected: Vec<_> = expected.iter().map(|path| Path::parse(path).unwrap()).collect();
            assert_eq!(missing, expected, "{place}");
        }
    }
}
