//! The counters of a process over all attempts of its run. Each attempt counts from 0, and the counter of a process must not fall.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The counts of earlier attempts.
#[derive(Debug, Default)]
pub(crate) struct CarriedCounters {
    /// The sums of the attempts that are over, by sample: its name with its labels.
    earlier: BTreeMap<String, f64>,
    /// The newest counts of this attempt.
    now: BTreeMap<String, f64>,
}

impl CarriedCounters {
    /// Another attempt begins, and counts from 0.
    pub(crate) fn next_attempt(&mut self) {
        for (sample, count) in std::mem::take(&mut self.now) {
            *self.earlier.entry(sample).or_default() += count;
        }
    }

    /// Adds the counts of the earlier attempts to the `metrics` of this one, as text.
    pub(crate) fn add_to(&mut self, metrics: &str) -> String {
        let mut all = String::with_capacity(metrics.len());
        for line in metrics.lines() {
            let counter = counter(line);
            if let Some((sample, count)) = counter {
                self.now.insert(sample.to_owned(), count);
            }
            // Writing to a string does not fail.
            let _ = match counter.and_then(|(sample, count)| Some((sample, self.earlier.get(sample)? + count))) {
                Some((sample, sum)) => writeln!(all, "{sample} {sum:?}"),
                None => writeln!(all, "{line}"),
            };
        }
        all
    }
}

/// The sample and the count in a line of a counter, such as `forebay_rows_rejected_total{reason="bad"} 3.0`.
fn counter(line: &str) -> Option<(&str, f64)> {
    let (sample, count) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (name, _) = sample.split_once('{').unwrap_or((sample, ""));
    let count = count.parse().ok()?;
    name.ends_with("_total").then_some((sample, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(rows: u64, bad: Option<u64>) -> String {
        let bad = bad.map_or_else(String::new, |bad| format!("rejected_total{{reason=\"a bad _total 1\"}} {bad}.0\n"));
        format!("# TYPE rows counter\nrows_total {rows}.0\n{bad}model_rows 900.0\n# EOF\n")
    }

    /// A bug: after a roll-back `rate()` saw the counters fall, and counted rows that were never trained on.
    #[test]
    fn counters_continue_from_where_earlier_attempts_ended_and_gauges_do_not() {
        let mut carried = CarriedCounters::default();
        assert_eq!(carried.add_to(&metrics(5, None)), metrics(5, None));
        assert_eq!(carried.add_to(&metrics(30, Some(2))), metrics(30, Some(2)));
        carried.next_attempt();
        assert_eq!(carried.add_to(&metrics(0, Some(0))), metrics(30, Some(2)));
        // One that was not there when the attempt ended.
        carried.add_to(&metrics(7, None));
        carried.next_attempt();
        carried.next_attempt();
        assert_eq!(carried.add_to(&metrics(1, Some(4))), metrics(38, Some(6)));
    }
}
