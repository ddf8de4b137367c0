//! `train.look_ahead`: how many batches ahead the trainer pulls rows, and which jobs can have look-ahead.

use std::time::Duration;

use forebay_actors::Fault;

use super::{DenseAt, Job, LookupAt};

/// Batches ahead if the job does not set them, and the round trip is at least [`WORTH`]. A batch takes two round trips, so nine batches
/// under way hide a round trip of 50 ms behind 11 ms of work for each batch.
const AUTO: usize = 8;

/// With a shorter round trip to the ps, stepping rows twice costs more than waiting.
const WORTH: Duration = Duration::from_millis(2);

impl Job {
    /// The largest `train.look_ahead`: more is taken for a typing error.
    pub const MOST_LOOK_AHEAD: usize = 64;

    /// Whether rows can be pulled ahead: the tables are in other processes, and no field rules look-ahead out.
    pub fn may_look_ahead(&self) -> bool {
        self.placement.ps > 0 && self.against_look_ahead().is_none()
    }

    /// How many batches ahead rows are pulled if the farthest ps has this round trip; 0 in jobs without look-ahead.
    pub fn look_ahead(&self, round_trip: Duration) -> usize {
        match self.may_look_ahead() {
            true => self.train.look_ahead.or(if round_trip >= WORTH { AUTO } else { 0 }),
            false => 0,
        }
    }

    /// Which field of the job rules look-ahead out, and what to do about it.
    fn against_look_ahead(&self) -> Option<String> {
        let (placement, staleness) = (&self.placement, self.train.staleness);
        if staleness.exactly || staleness.batches > 0 {
            return Some(format!("train.staleness is {staleness}, and look-ahead is for 0: leave one of them out"));
        }
        if placement.trainers > 1 {
            let trainers = placement.trainers;
            return Some(format!("placement.trainers is {trainers}, and look-ahead is for 1: leave it out"));
        }
        if placement.lookup_at == LookupAt::Reader {
            return Some("placement.lookup_at is \"reader\": look up at the trainer".into());
        }
        if placement.dense() == DenseAt::Ps {
            return Some("placement.dense is \"ps\", so every batch waits for them: set it to \"trainer\"".into());
        }
        if !self.tables.is_empty() {
            return Some("[tables] gives rows several shapes: leave tables or look_ahead out".into());
        }
        self.table.rules().map(|rules| {
            format!("table.{rules} lets the shards decide which keys have a row: leave {rules} or look_ahead out")
        })
    }

    /// Checks a look-ahead that the job pins.
    pub(super) fn check_look_ahead(&self) -> Result<(), Fault> {
        let (k, most) = (self.train.look_ahead.or(0), Self::MOST_LOOK_AHEAD);
        if k > most {
            return Err(Fault::user(format!("train.look_ahead is {k}, expected at most {most}")));
        }
        match self.against_look_ahead() {
            Some(why) if k > 0 => Err(Fault::user(format!("train.look_ahead is {k}, but {why}"))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(settings: &[&str]) -> Job {
        Job::with_settings("", settings).unwrap()
    }

    #[test]
    fn one_trainer_with_its_tables_far_away_looks_ahead_unless_it_must_not() {
        let apart = ["placement.ps=2", "placement.readers=1"];
        for (more, k) in [
            (&[][..], AUTO),
            (&["train.look_ahead=3"], 3),
            (&["train.look_ahead=0"], 0),
            (&["train.look_ahead=auto"], AUTO),
            (&["train.staleness=2"], 0),
            (&["train.staleness={ exactly = 0 }"], 0),
            (&["placement.trainers=2"], 0),
            (&["placement.trainers=2", "train.sync=true"], 0),
            (&["placement.lookup_at=reader"], 0),
            (&["placement.dense=ps"], 0),
            (&["table.admission.count=2"], 0),
            (&["table.eviction.unseen_rows=5"], 0),
            // The tables are in this process, so there is no round trip to hide.
            (&["placement.ps=0"], 0),
            (&["placement.ps=0", "train.look_ahead=3"], 0),
        ] {
            let job = job(&[&apart[..], more].concat());
            job.check().unwrap();
            assert_eq!(job.look_ahead(Duration::from_millis(50)), k, "{more:?}");
            let pinned = more.contains(&"train.look_ahead=3");
            assert_eq!(job.look_ahead(Duration::from_micros(300)), if pinned { k } else { 0 }, "{more:?}");
        }
    }

    #[test]
    fn a_look_ahead_that_a_job_cannot_have_is_refused_with_the_reason() {
        for (settings, words) in [
            (&["train.look_ahead=65"][..], "train.look_ahead is 65, expected at most 64"),
            (&["train.look_ahead=8", "train.staleness=2"], "but train.staleness is 2, and look-ahead is for 0"),
            (&["train.look_ahead=8", "train.staleness={ exactly = 0 }"], "train.staleness is { exactly = 0 }"),
            (&["train.look_ahead=8", "placement.trainers=2", "placement.ps=1"], "placement.trainers is 2"),
            (&["train.look_ahead=8", "placement.dense=ps", "placement.ps=1"], "placement.dense is \"ps\""),
            (
                &["train.look_ahead=8", "placement.lookup_at=reader", "placement.ps=1", "placement.readers=1"],
                "placement.lookup_at is \"reader\"",
            ),
            (&["train.look_ahead=8", "table.admission.probability=0.5"], "table.admission lets the shards decide"),
            (&["train.look_ahead=8", "table.eviction.max_rows=100000"], "leave eviction or look_ahead out"),
        ] {
            let said = job(settings).check().unwrap_err().to_string();
            assert!(said.contains(words), "no `{words}` in: {said}");
        }
    }
}
