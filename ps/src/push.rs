//! What a push says of itself, and what became of it. Nothing blocks.

use serde::{Deserialize, Serialize};

/// Names a push: whoever computes the gradients of a batch gives them the name of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushId {
    /// Where the batch comes from: an epoch and a window of its rows.
    pub source: u64,
    /// Which batch of its source.
    pub sequence: u32,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushOutcome {
    /// It was applied, now.
    Applied,
    /// It had been applied before, and nothing was changed.
    Already,
}

/// The process that pushes: one of several trainers, and which life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trainer {
    /// Its number among the trainers, from 0.
    pub rank: u32,
    /// Grows with each process that takes the rank over. A push of an older one than a shard has seen is refused.
    pub incarnation: u64,
}

/// The push of one trainer is part of a round, which all trainers together make: synchronous training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Trainers that push in the round.
    pub trainers: u32,
    /// Rows of this trainer's batch. Its gradients weigh `rows` of the rows of the round.
    pub rows: u64,
}

/// Whose push it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) id: PushId,
    pub(crate) trainer: Option<Trainer>,
    pub(crate) round: Option<Round>,
}
