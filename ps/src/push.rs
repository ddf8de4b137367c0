//! The name of a push, its trainer, its round, and its outcome.

use forebay_actors::Fault;
use serde::{Deserialize, Serialize};

/// The name of a push: the name of the batch whose gradients it brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushId {
    /// The series of the push. All pushes of a series are acknowledged together: the pushes of one window of one epoch, or in an exact
    /// order 4,096 consecutive pushes.
    pub series: u64,
    /// The number of the push in its series.
    pub index: u32,
}

/// The outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushOutcome {
    /// This call applied the push.
    Applied,
    /// The push had been applied before, and nothing was changed.
    Already,
}

impl PushOutcome {
    /// The outcome of a push with shares at several places: applied, if this call applied a share at any place.
    pub(crate) fn of_all(shares: &[PushOutcome]) -> Self {
        if shares.contains(&Self::Applied) { Self::Applied } else { Self::Already }
    }
}

/// The process that pushes: one of several trainers, and its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trainer {
    /// Its number among the trainers, from 0.
    pub rank: u32,
    /// Grows with each process that takes over the rank. A shard refuses pushes of an incarnation older than it has seen.
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

/// The round that a pull must see, and the trainer that pulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterRound {
    /// The step of the round. The trainer has pushed its share of it.
    pub step: u64,
    /// Who pulls.
    pub trainer: Trainer,
}

/// The stamp by which a push is applied once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The name of the push.
    pub id: PushId,
    /// Who pushes. `None`: a client that is no trainer.
    pub trainer: Option<Trainer>,
    /// The round of the push.
    pub round: Option<Round>,
}

/// The sender of pushes over an exchange, in a run of this many trainers.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// As in [`Identity::role`](forebay_net::Identity::role).
    pub(crate) role: String,
    pub(crate) trainers: u32,
}

impl Sender {
    /// # Errors
    /// User: the push names another trainer than its sender, or its round is not one of this run.
    pub(crate) fn check(&self, stamp: Option<Stamp>) -> Result<(), Fault> {
        let Self { role, trainers } = self;
        let Some(Stamp { trainer: Some(Trainer { rank, .. }), round, .. }) = stamp else { return Ok(()) };
        if *role != format!("trainer {rank}") {
            return Err(Fault::user(format!(
                "`{}` pushed as trainer {rank}: a process may push only in its own name",
                role.escape_debug()
            )));
        }
        if rank >= *trainers || round.is_some_and(|round| round.trainers != *trainers) {
            let of = round.map_or(String::new(), |round| format!(" for a round of {}", round.trainers));
            return Err(Fault::user(format!(
                "trainer {rank} pushed{of}: the run has {trainers} trainers, numbered from 0"
            )));
        }
        Ok(())
    }

    /// # Errors
    /// User: its sender is no trainer of the run, or trainers acknowledge nothing in this run (`do_they` is false).
    pub(crate) fn check_acknowledge(&self, do_they: bool) -> Result<(), Fault> {
        if !do_they {
            return Err(Fault::user(format!(
                "`{}` acknowledges pushes: in this run each ps acknowledges its own, when windows are done",
                self.role.escape_debug()
            )));
        }
        self.check_trainer("acknowledges pushes")
    }

    /// # Errors
    /// User: its sender, which `does` this, is no trainer of the run. Other processes push nothing, and what they acknowledge would not be
    /// applied.
    pub(crate) fn check_trainer(&self, does: &str) -> Result<(), Fault> {
        let Self { role, trainers } = self;
        let rank = role.strip_prefix("trainer ").and_then(|rank| rank.parse::<u32>().ok());
        if rank.is_some_and(|rank| rank < *trainers) {
            return Ok(());
        }
        Err(Fault::user(format!(
            "`{}` {does}: only a trainer of the run may, of trainer 0 to {}",
            role.escape_debug(),
            trainers.saturating_sub(1)
        )))
    }

    /// # Errors
    /// User: the pull names another trainer than its sender.
    pub(crate) fn check_pull(&self, after: AfterRound) -> Result<(), Fault> {
        let (Self { role, trainers }, rank) = (self, after.trainer.rank);
        if *role == format!("trainer {rank}") && rank < *trainers {
            return Ok(());
        }
        Err(Fault::user(format!(
            "`{}` pulled as trainer {rank} of {trainers}: only a trainer of the run may wait for a round, in its own name",
            role.escape_debug()
        )))
    }
}

impl AfterRound {
    /// The round of `step`, for a client.
    ///
    /// # Errors
    /// User: the client has no trainer.
    pub(crate) fn of_client(step: u64, trainer: Option<Trainer>, what: &str) -> Result<Self, Fault> {
        match trainer {
            Some(trainer) => Ok(Self { step, trainer }),
            None => Err(Fault::user(format!(
                "{what}: a pull that waits for a round needs a trainer: pull with the client that `of_trainer` returns"
            ))),
        }
    }
}

impl Stamp {
    /// The stamp of one push of a round.
    ///
    /// # Errors
    /// User: the client has no trainer.
    pub(crate) fn of_round(id: PushId, trainer: Option<Trainer>, round: Round, what: &str) -> Result<Self, Fault> {
        match trainer {
            Some(_) => Ok(Self { id, trainer, round: Some(round) }),
            None => Err(Fault::user(format!(
                "{what}: a push of a round needs a trainer: push with the client that `of_trainer` returns"
            ))),
        }
    }
}
