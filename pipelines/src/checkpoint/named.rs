//! How a user names one checkpoint: `FOLDER` (its newest), `FOLDER#NUMBER`, or the path of a manifest.

use std::fmt;

use forebay_actors::Fault;

use super::folder::CheckpointFolder;
use super::manifest::CheckpointManifest;
use super::origin::DamagedCheckpoints;
use crate::checkpoint_name;
use crate::context::Context;

/// A checkpoint that a user named, in its folder.
#[derive(Debug)]
pub(crate) struct NamedCheckpoint {
    pub(crate) folder: CheckpointFolder,
    /// `None`: the newest.
    number: Option<u64>,
}

impl fmt::Display for NamedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "checkpoint {number} in {}", self.folder.folder),
            None => write!(f, "the newest checkpoint in {}", self.folder.folder),
        }
    }
}

impl NamedCheckpoint {
    /// Opens the folder; nothing is read yet.
    pub(crate) fn open(text: &str, context: &Context) -> Result<Self, Fault> {
        let (folder, number) = parse(text);
        Ok(Self { folder: CheckpointFolder::open(folder, context)?, number })
    }

    /// Its manifest. The files that it names are not read.
    ///
    /// # Errors
    /// A user fault if there is no such checkpoint; it lists the checkpoints of the folder.
    pub(crate) fn manifest(&self) -> Result<CheckpointManifest, Fault> {
        let numbers = self.folder.numbers_with(self.number)?;
        self.folder.manifest(self.number.or(numbers.last().copied()).unwrap_or_default())
    }

    /// Its manifest: the newest that is not among `damaged`, or the one of the number that was named.
    ///
    /// # Errors
    /// As [`manifest`](Self::manifest). The named checkpoint is among `damaged`, or all are.
    pub(crate) fn not_among(&self, damaged: &DamagedCheckpoints) -> Result<CheckpointManifest, Fault> {
        let numbers = self.folder.numbers_with(self.number)?;
        match (self.number, damaged.fault()) {
            (Some(number), None) => self.folder.manifest(number),
            // The user asked for this one and no other.
            (Some(_), Some(fault)) => Err(fault),
            // The folder has checkpoints, so one is usable or this fails.
            (None, _) => Ok(self.folder.newest(damaged)?.map_or_else(|| self.folder.manifest(numbers[0]), Ok)?),
        }
    }
}

/// The folder, and the number if one is named.
fn parse(text: &str) -> (&str, Option<u64>) {
    if let Some((folder, number)) = text.rsplit_once('#')
        && let Ok(number) = number.parse()
    {
        return (folder, Some(number));
    }
    let (folder, file) = text.rsplit_once('/').unwrap_or((".", text));
    match checkpoint_name::number_of(file) {
        Some(number) => (if folder.is_empty() { "/" } else { folder }, Some(number)),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_has_three_kinds_of_names() {
        for (text, folder, number) in [
            ("rows/checkpoints", "rows/checkpoints", None),
            ("rows/checkpoints#12", "rows/checkpoints", Some(12)),
            ("hdfs://ns/c#7", "hdfs://ns/c", Some(7)),
            ("rows/a#b", "rows/a#b", None),
            ("rows/checkpoints/checkpoint-000012.json", "rows/checkpoints", Some(12)),
            ("checkpoint-000012.json", ".", Some(12)),
            ("/checkpoint-000012.json", "/", Some(12)),
            ("s3://b/c/checkpoint-1234567.json", "s3://b/c", Some(1_234_567)),
        ] {
            assert_eq!(parse(text), (folder, number), "{text}");
        }
    }
}
