//! The `[placement]` part of a job: which processes there are, and what each of them does.

use std::time::Duration;

use forebay_actors::Fault;
use forebay_net::Compression;
use forebay_ps::remote::Wire;
use serde::{Deserialize, Serialize};

use super::{ByteSize, Job};

/// Processes by role, and the links between them. The default is one process that does everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// Processes that read, parse and batch. Default 0: each trainer reads by itself. More may join while it runs.
    pub readers: usize,
    /// Processes that hold `table.shards` shards each. Default 0: the only trainer holds them.
    pub ps: usize,
    /// Processes that compute. Default 1.
    pub trainers: usize,
    /// Who looks up the rows of a batch's keys: "trainer" (the default), or "reader": then rows travel with the batch, and
    /// trainers only push. The tickets of `train.staleness` are shared out among the readers.
    pub lookup_at: LookupAt,
    /// Who keeps the dense parameters: "trainer" (the default of one trainer) or "ps" (the default of several, and what
    /// lets a new trainer take over from one that died).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense: Option<DenseAt>,
    /// Batches that may be under way on one link from a reader to a trainer, sent and not yet taken. Default 64.
    pub in_flight: usize,
    /// Bytes of them, at most; one batch that is larger goes alone. Default "64MiB".
    pub in_flight_bytes: ByteSize,
    /// Connections of one link, which share its credits. Default: one for every 12.5 ms of the round trip, at most 8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// What rows and gradients travel as between trainers and ps: "f32" (the default) or "f16" (half the bytes).
    pub wire: Wire,
    /// How what travels is compressed: "lz4" or "zstd". Default: not at all, which is faster on a network of 10 Gbit/s and more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compression>,
    /// Rows that a reader is given at a time, rounded to whole windows of the shuffle. Default 262,144.
    pub lease_rows: usize,
    /// Seconds without a word after which a reader's rows are given to another. Default 30.
    pub lease_seconds: f64,
    /// Seconds that a peer that does not answer is waited for, at the start and later. Default 600.
    pub timeout_seconds: f64,
}

/// Who looks up rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupAt {
    /// The trainer.
    #[default]
    Trainer,
    /// The reader.
    Reader,
}

/// Who keeps the dense parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseAt {
    /// The trainer, of which there is one.
    Trainer,
    /// The ps processes, in blocks of even size.
    Ps,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            readers: 0,
            ps: 0,
            trainers: 1,
            lookup_at: LookupAt::Trainer,
            dense: None,
            in_flight: 64,
            in_flight_bytes: ByteSize(64 << 20),
            streams: None,
            wire: Wire::F32,
            compress: None,
            lease_rows: 262_144,
            lease_seconds: 30.0,
            timeout_seconds: 600.0,
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_one_process() {
            return f.write_str("one process");
        }
        let at = |trainer| if trainer { "trainer" } else { "ps" };
        write!(
            f,
            "{} readers, {} ps, {} trainers; look-up at the {}, dense parameters at the {}; a link holds {} batches, {} at most",
            self.readers,
            self.ps,
            self.trainers,
            if self.lookup_at == LookupAt::Reader { "reader" } else { "trainer" },
            at(self.dense() == DenseAt::Trainer),
            self.in_flight,
            self.in_flight_bytes
        )
    }
}

impl Placement {
    /// Whether everything is in one process.
    pub fn is_one_process(&self) -> bool {
        self.readers == 0 && self.ps == 0 && self.trainers == 1
    }

    /// How long a peer is waited for.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }

    /// Who keeps the dense parameters, with the default resolved.
    pub fn dense(&self) -> DenseAt {
        self.dense.unwrap_or(if self.trainers > 1 { DenseAt::Ps } else { DenseAt::Trainer })
    }

    /// Refuses what does not go together, by name.
    pub(super) fn check(&self, job: &Job) -> Result<(), Fault> {
        let refuse = |what: String| Err(Fault::user(what));
        let Self { readers, ps, trainers, .. } = *self;
        for (name, value) in [
            ("placement.trainers", trainers),
            ("placement.in_flight", self.in_flight),
            ("placement.in_flight_bytes", self.in_flight_bytes.0),
            ("placement.streams", self.streams.unwrap_or(1)),
            ("placement.lease_rows", self.lease_rows),
        ] {
            if value == 0 {
                return refuse(format!("{name} is 0, expected at least 1"));
            }
        }
        for (name, value) in
            [("placement.lease_seconds", self.lease_seconds), ("placement.timeout_seconds", self.timeout_seconds)]
        {
            if !(value.is_finite() && value > 0.0) {
                return refuse(format!("{name} is {value}, expected a number of seconds above 0"));
            }
        }
        let streams = self.streams.unwrap_or(1);
        for (name, value, most) in [
            ("readers", readers, MOST_PROCESSES),
            ("ps", ps, MOST_PROCESSES),
            ("trainers", trainers, MOST_PROCESSES),
            ("streams", streams, MOST_STREAMS),
        ] {
            if value > most {
                return refuse(format!("placement.{name} is {value}, expected at most {most}"));
            }
        }
        if trainers > 1 && ps == 0 {
            return refuse(format!(
                "placement.trainers is {trainers}, but placement.ps is 0: several trainers share shards, so place at least 1 ps"
            ));
        }
        if trainers > 1 && self.dense() == DenseAt::Trainer {
            return refuse(format!(
                "placement.dense is \"trainer\", but there are {trainers} trainers: set it to \"ps\""
            ));
        }
        if ps == 0 && self.dense == Some(DenseAt::Ps) {
            return refuse("placement.dense is \"ps\", but placement.ps is 0: place at least 1 ps".into());
        }
        if self.lookup_at == LookupAt::Reader {
            self.check_lookup_at_reader(job)?;
        }
        if job.train.sync && trainers > 1 && readers == 0 {
            return refuse(
                "train.sync deals the batches of a window to all trainers, so it takes readers of their own: set \
                 placement.readers to at least 1"
                    .into(),
            );
        }
        if job.train.sync && trainers > 1 && job.train.staleness > 0 {
            return refuse(format!(
                "train.sync with train.staleness = {}: a synchronous step is never stale, set it to 0",
                job.train.staleness
            ));
        }
        Ok(())
    }
}

impl Placement {
    fn check_lookup_at_reader(&self, job: &Job) -> Result<(), Fault> {
        let Self { readers, ps, trainers, .. } = *self;
        let refuse = |what: String| Err(Fault::user(format!("placement.lookup_at is \"reader\", but {what}")));
        if readers == 0 || ps == 0 {
            return refuse(format!("there are {readers} readers and {ps} ps: place at least 1 of each"));
        }
        if job.train.sync && trainers > 1 {
            return refuse("train.sync is set: rows would be a step old; look up at the trainers".into());
        }
        if readers > job.train.staleness + 1 {
            return refuse(format!(
                "train.staleness = {} gives {} tickets for {readers} readers: set it to at least {}",
                job.train.staleness,
                job.train.staleness + 1,
                readers - 1
            ));
        }
        Ok(())
    }

    /// With look-up at the readers: how many of the `staleness + 1` tickets the reader of this rank holds.
    pub(crate) fn tickets(&self, rank: u32, staleness: usize) -> Option<usize> {
        let (rank, readers) = (rank as usize, self.readers.max(1));
        let all = staleness + 1;
        (rank < readers).then_some(all / readers + usize::from(rank < all % readers))
    }
}

/// More processes of a role than this is a slip of the finger.
const MOST_PROCESSES: usize = 1024;

/// So is more connections of one link.
const MOST_STREAMS: usize = 64;
