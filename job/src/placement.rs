//! The `[placement]` section of a job.

use std::time::Duration;

use forebay_actors::{Fault, counted};
use forebay_net::Compression;
use forebay_ps::remote::Wire;
use serde::{Deserialize, Serialize};

use super::{ByteSize, Job};

/// The processes of the run and their connections. The default is one process that does everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// Reader processes, which read, parse and batch. With 0, each trainer reads. More readers may join during the run. At most 1024.
    pub readers: usize,
    /// Ps processes, each with `table.shards` shards. With 0, the only trainer holds the shards. At most 1024.
    pub ps: usize,
    /// Trainer processes, which compute. From 1 to 1024.
    pub trainers: usize,
    /// The role that looks up the table rows of a batch. If it is "reader", rows travel with the batch, trainers only push,
    /// and the readers share the tickets of `train.staleness`.
    pub lookup_at: LookupAt,
    /// The role that holds the dense parameters. Default: "trainer" if there is one trainer, "ps" if there are several. With
    /// "ps", a new trainer can replace one that died.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense: Option<DenseAt>,
    /// Batches that a reader may have sent to a trainer and the trainer has not taken yet. From 1 to 65536.
    pub in_flight: usize,
    /// Bytes that a reader may have sent to a trainer and the trainer has not taken yet. A batch larger than this is sent
    /// alone. At least 1.
    pub in_flight_bytes: ByteSize,
    /// Connections from a reader to a trainer, which share the credits, for instance `4`. Default: one for each 12.5 ms of the
    /// round trip, at most 8. From 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// The number format of rows and gradients between trainers and ps. With "f16" the model depends on the number of ps, because
    /// 128 numbers in a row share an exponent.
    pub wire: Wire,
    /// Compression of batches, rows and gradients between processes. Default: none, which is faster on networks of 10 Gbit/s
    /// and more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compression>,
    /// Rows of a lease, rounded to whole windows. At least 1.
    pub lease_rows: usize,
    /// Seconds after the last heartbeat of a reader until its leases go to another reader. Above 0 and at most 1e9.
    pub lease_seconds: f64,
    /// Seconds to wait for a peer that does not answer, at the start and later. Above 0 and at most 1e9.
    pub timeout_seconds: f64,
}

/// The role that looks up table rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupAt {
    /// The trainer.
    #[default]
    Trainer,
    /// The reader.
    Reader,
}

/// The role that holds the dense parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseAt {
    /// The only trainer.
    Trainer,
    /// The ps processes, each with one dense block.
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
            "{}, {} ps, {}; lookup at the {}, dense parameters at the {}; a channel holds {}, {} at most",
            counted(self.readers, "reader"),
            self.ps,
            counted(self.trainers, "trainer"),
            if self.lookup_at == LookupAt::Reader { "reader" } else { "trainer" },
            at(self.dense() == DenseAt::Trainer),
            counted(self.in_flight, "batch"),
            self.in_flight_bytes
        )
    }
}

impl Placement {
    /// Whether one process does everything.
    pub fn is_one_process(&self) -> bool {
        self.readers == 0 && self.ps == 0 && self.trainers == 1
    }

    /// How long to wait for a peer.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }

    /// The role that holds the dense parameters, with the default resolved.
    pub fn dense(&self) -> DenseAt {
        self.dense.unwrap_or(if self.trainers > 1 { DenseAt::Ps } else { DenseAt::Trainer })
    }

    /// The fields that are times in seconds.
    fn waits(&self) -> [(&'static str, f64); 2] {
        [("placement.lease_seconds", self.lease_seconds), ("placement.timeout_seconds", self.timeout_seconds)]
    }

    /// Refuses waits that are so long that their end overflows.
    pub(super) fn check_seconds(&self) -> Result<(), Fault> {
        for (name, value) in self.waits() {
            if value > MOST_SECONDS {
                return Err(Fault::user(format!("{name} is {value}, expected at most {MOST_SECONDS}")));
            }
        }
        Ok(())
    }

    /// Checks values and combinations of values; the fault names the field.
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
        for (name, value) in self.waits() {
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
                "train.sync needs separate readers, which deal the batches of a window to all trainers: set \
                 placement.readers to at least 1"
                    .into(),
            );
        }
        let staleness = job.train.staleness;
        if job.train.sync && trainers > 1 && !staleness.is_sequential() {
            return refuse(format!(
                "train.sync needs the same rows for all trainers of a step, but train.staleness is {staleness}: set it \
                 to 0 or to {{ exactly = {staleness} }}"
            ));
        }
        if staleness.exactly && trainers > 1 && !job.train.sync {
            return refuse(format!(
                "train.staleness is {staleness}, which needs one order of all batches, but the {trainers} trainers \
                 step independently: set train.sync, or train.staleness to {}",
                staleness.batches
            ));
        }
        Ok(())
    }

    fn check_lookup_at_reader(&self, job: &Job) -> Result<(), Fault> {
        let Self { readers, ps, trainers, .. } = *self;
        let refuse = |what: String| Err(Fault::user(format!("placement.lookup_at is \"reader\", but {what}")));
        if readers == 0 || ps == 0 {
            return refuse(format!("there are {} and {ps} ps: place at least 1 of each", counted(readers, "reader")));
        }
        if job.train.sync && trainers > 1 {
            return refuse("train.sync is set: rows would be a step old; look up at the trainers".into());
        }
        let staleness = job.train.staleness;
        if staleness.exactly {
            return refuse(format!(
                "train.staleness is {staleness}: the trainer orders look-ups and pushes, and each reader looks up by itself; look \
                 up at the trainer"
            ));
        }
        if readers > staleness.batches + 1 {
            return refuse(format!(
                "train.staleness = {staleness} gives {} for {readers} readers: set it to at least {}",
                counted(staleness.batches + 1, "ticket"),
                readers - 1
            ));
        }
        Ok(())
    }

    /// With lookup at the readers: how many of the `staleness + 1` tickets the reader of this rank holds.
    pub fn tickets(&self, rank: u32, staleness: usize) -> Option<usize> {
        let (rank, readers) = (rank as usize, self.readers.max(1));
        let all = staleness + 1;
        (rank < readers).then_some(all / readers + usize::from(rank < all % readers))
    }
}

/// Most processes of a role: more is taken for a typing error.
const MOST_PROCESSES: usize = 1024;

/// Most seconds of a wait: a moment that is much later overflows.
const MOST_SECONDS: f64 = 1e9;

/// Most connections from a reader to a trainer: more is taken for a typing error.
const MOST_STREAMS: usize = 64;
