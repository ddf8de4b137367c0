//! The name of a batch. The data alone determines it, so every process gives a batch the same name.

use forebay_base::mix64;
use forebay_ps::PushId;
use serde::{Deserialize, Serialize};

/// The name of a batch. Ids are ordered as the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchId {
    /// Pass over the data, from 0.
    pub epoch: u32,
    /// Number of the window within the epoch, from 0.
    pub window: u64,
    /// Number of the batch within the window, from 0.
    pub index: u32,
}

impl BatchId {
    /// The id as one number, a hash. It seeds dropout.
    pub fn number(self) -> u64 {
        mix64(mix64(mix64(u64::from(self.epoch)) ^ self.window) ^ u64::from(self.index))
    }

    /// The id of its push: 24 bits of the epoch, 40 bits of the window, and the index.
    pub fn push_id(self) -> PushId {
        PushId { series: u64::from(self.epoch) << 40 | (self.window & ((1 << 40) - 1)), index: self.index }
    }
}

impl std::fmt::Display for BatchId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batch {} of window {} of epoch {}", self.index, self.window, self.epoch)
    }
}
