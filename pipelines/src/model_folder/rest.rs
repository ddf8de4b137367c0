//! The rest of a model folder: files of a model without a manifest, which a process leaves that is killed while it replaces or removes the
//! folder in a store without renames. A later model may replace the rest.

use forebay_actors::Fault;
use forebay_connectors::staged::OpenFolder;

use crate::context::Context;

const TABLES: &str = "tables";

/// Whether the folder holds nothing but files that a model folder has, and no manifest. `own`: the files beside the manifest. Blocks on the
/// store.
///
/// # Errors
/// The fault of the disk or the store.
pub(super) fn is_rest(folder: &OpenFolder, own: &[&str], context: &Context) -> Result<bool, Fault> {
    let (files, folders) = (folder.files()?, folder.folders()?.unwrap_or_default());
    let are_of_model = files.iter().all(|(name, _)| own.contains(&name.as_str()));
    if !are_of_model || !folders.iter().all(|name| name == TABLES) {
        return Ok(false);
    }
    if folders.is_empty() {
        return Ok(!files.is_empty());
    }
    let below = |folder: &OpenFolder, name: &str| folder.folder(name)?.with_stores(&context.stores).open();
    let tables = below(folder, TABLES)?;
    if !tables.files()?.is_empty() {
        return Ok(false);
    }
    for name in tables.folders()?.unwrap_or_default() {
        let table = below(&tables, &name)?;
        let are_of_table = table.files()?.iter().all(|(name, _)| is_of_table(name));
        if !are_of_table || !table.folders()?.unwrap_or_default().is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file of a table is called so: `shard-0000.parquet`, `absent-0000.arrow`.
fn is_of_table(name: &str) -> bool {
    let parts = [("shard-", ".parquet"), ("absent-", ".arrow")];
    let number = parts.iter().find_map(|(begin, end)| name.strip_prefix(begin)?.strip_suffix(end));
    number.is_some_and(|number| number.len() >= 4 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use forebay_connectors::staged::Folder;

    use super::*;

    /// A bug: after a kill at such a moment, no later run could write a model there.
    #[test]
    fn only_files_of_a_model_without_a_manifest_are_the_rest_of_one() {
        let context = Context::default();
        let (dense, optimizer, shard) = ("dense", "optimizer", "tables/embedding/shard-0000.parquet");
        for (files, is) in [
            (&[][..], false),
            (&[dense], true),
            (&[shard], true),
            (&[dense, optimizer, shard, "tables/users/absent-0012.arrow"], true),
            (&[dense, "notes.txt"], false),
            (&[dense, "manifest.json"], false),
            (&[shard, "tables/readme"], false),
            (&["tables/embedding/part-0000.parquet"], false),
            (&["tables/embedding/shard-0000.parquet/x"], false),
            (&["tables/embedding/shard-x.parquet"], false),
            (&[shard, "other/shard-0000.parquet"], false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for file in files {
                let path = dir.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
            let folder = Folder::from(dir.path()).open().unwrap();
            assert_eq!(is_rest(&folder, &[dense, optimizer], &context).unwrap(), is, "{files:?}");
        }
    }
}
