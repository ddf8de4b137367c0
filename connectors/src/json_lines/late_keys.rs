//! Keys that no file has in its first lines. A source that finds its columns in the first lines does not know these keys.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

/// What a source does with a value of a key that no file has in its first lines.
#[derive(Clone, Debug)]
pub(super) enum NewKeys {
    /// It skips the value, as for any key that is no column.
    Skipped,
    /// The row is bad. With the keys of the first lines of all files.
    Bad(Arc<HashSet<String>>),
    /// It counts the row. With the keys of the first lines of all files.
    Counted(Arc<HashSet<String>>, LateKeys),
}

impl NewKeys {
    /// Whether no file has this key in its first lines, unless such keys are skipped.
    pub(super) fn is_new(&self, key: &str) -> bool {
        match self {
            Self::Skipped => false,
            Self::Bad(known) | Self::Counted(known, _) => !known.contains(key),
        }
    }
}

/// The rows with keys that no file has in its first lines. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct LateKeys(Arc<Mutex<LateKeyCounts>>);

#[derive(Debug, Default)]
struct LateKeyCounts {
    rows: u64,
    /// The rows that have each key.
    keys: BTreeMap<String, u64>,
}

/// The most keys with a count of their own. Some files have values in the place of keys.
const MOST_KEYS: usize = 1000;

impl LateKeys {
    /// Counts a row that has these late keys, and empties `keys`. Does not count a row without late keys.
    pub(super) fn add_row(&self, keys: &mut Vec<String>) {
        if keys.is_empty() {
            return;
        }
        let mut counts = self.0.lock().expect("no holder of this lock panics");
        counts.rows += 1;
        keys.sort_unstable();
        keys.dedup();
        for key in keys.drain(..) {
            if let Some(rows) = counts.keys.get_mut(&key) {
                *rows += 1;
            } else if counts.keys.len() < MOST_KEYS {
                counts.keys.insert(key, 1);
            }
        }
    }

    /// The rows that have such keys, and the rows that have each key.
    pub(crate) fn counts(&self) -> (u64, BTreeMap<String, u64>) {
        let counts = self.0.lock().expect("no holder of this lock panics");
        (counts.rows, counts.keys.clone())
    }
}
