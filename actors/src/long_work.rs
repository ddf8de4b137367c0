//! Warns of a stage whose code holds its thread for long: the stage cannot say it itself, and the run waits for it. Its meter shows it.
//!
//! A stage that awaits, or waits for input or room, does not hold its thread. The time of a batch counts alone: before the next one the
//! stage yields.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use forebay_base::next_reminder;

use crate::lock::lock;
use crate::state::State;

/// The meters are looked at this many times in the time after which a stage is warned of.
const LOOKS: u32 = 6;

/// A replica: its stage by the position in the wiring, and its number.
type Replica = (usize, usize);

/// Looks at the meters without end, and warns.
pub(crate) async fn warn_of_long_work(state: &State) -> Infallible {
    let mut warnings = Warnings { after: state.settings.long_work, last: BTreeMap::new() };
    loop {
        tokio::time::sleep(warnings.after / LOOKS).await;
        let mut due = Vec::new();
        for (position, entry) in lock(&state.registry).stages.iter().enumerate() {
            for (replica, meter) in lock(&entry.meters).iter().enumerate() {
                let held = warnings.due((position, replica), meter.at_work_for());
                due.extend(held.map(|held| (replica, warning(entry.kind, &entry.name, &meter.description(), held))));
            }
        }
        // No lock is held: the log may have to wait.
        for (replica, warning) in due {
            tracing::warn!(run = state.plan.name, replica, "{warning}");
        }
    }
}

fn warning(kind: &str, stage: &str, described: &str, held: Duration) -> String {
    let described = if described.is_empty() { String::new() } else { format!(" ({described})") };
    let seconds = held.as_secs();
    let what = match kind {
        "source" => "has given no rows",
        _ => "has been at work on one batch",
    };
    format!(
        "the {kind} `{stage}`{described} {what} for {seconds} s; its code holds its thread, and the run waits for it"
    )
}

/// When replicas were warned of.
struct Warnings {
    /// Work shorter than this is no reason.
    after: Duration,
    /// How long the present work of a replica had taken at the last warning.
    last: BTreeMap<Replica, Duration>,
}

impl Warnings {
    /// Whether a warning is due for a replica whose present work has taken `held`, and that time; `None`: it is not at work.
    fn due(&mut self, replica: Replica, held: Option<Duration>) -> Option<Duration> {
        let last = self.last.get(&replica).copied();
        let Some(held) = held.filter(|&held| held >= last.unwrap_or(self.after)) else {
            // The work before is over.
            self.last.remove(&replica);
            return None;
        };
        (held >= next_reminder(self.after, last)).then(|| {
            self.last.insert(replica, held);
            held
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn work_without_end_is_warned_of_with_growing_pauses() {
        let mut warnings = Warnings { after: seconds(60), last: BTreeMap::new() };
        let times = (0..30_000).step_by(10).map(seconds);
        let warned: Vec<_> =
            times.filter_map(|held| warnings.due((0, 0), Some(held))).map(|held| held.as_secs()).collect();
        assert_eq!(warned[..8], [60, 120, 240, 480, 960, 1920, 3720, 5520]);
    }

    #[test]
    fn short_work_and_pauses_are_not_warned_of_and_each_work_counts_alone() {
        let mut warnings = Warnings { after: seconds(60), last: BTreeMap::new() };
        let mut due = |replica, held: Option<u64>| warnings.due(replica, held.map(seconds)).is_some();
        assert!(!due((0, 0), Some(59)) && !due((0, 0), None) && !due((1, 0), Some(10)));
        assert!(due((0, 0), Some(60)) && due((0, 1), Some(70)) && due((1, 0), Some(60)), "each replica is warned of");
        assert!(!due((0, 0), Some(70)));
        assert!(!due((0, 0), Some(5)), "another batch");
        assert!(due((0, 0), Some(65)), "and that one takes long, too");
        assert!(!due((0, 0), None) && due((0, 0), Some(60)), "the stage has waited in between");
    }
}
