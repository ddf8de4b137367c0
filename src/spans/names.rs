//! The ids of traces: they follow from the run and the name of a batch, so all processes of a run give a batch the same one.

use opentelemetry::trace::{SpanId, TraceId};

use crate::Fault;
use crate::actors::BatchName;
use forebay_base::{SplitMix64, mix64, random_seed};

/// The variable that starts the traces of a run, in the format of W3C Trace Context: `00-TRACE-PARENT-FLAGS`.
pub(crate) const TRACEPARENT: &str = "TRACEPARENT";

/// Names the traces of a run, and its spans.
pub(crate) struct TraceNames {
    run: u64,
    spans: SplitMix64,
}

impl TraceNames {
    /// Derives the names from `traceparent`, else from the name of the run. Without both the names are random.
    ///
    /// # Errors
    /// User: `traceparent` has another format.
    pub(crate) fn new(traceparent: Option<&str>, run: Option<&str>) -> Result<Self, Fault> {
        let run = match (traceparent, run) {
            (Some(traceparent), _) => text_hash(trace_of(traceparent)?),
            (None, Some(run)) => text_hash(run),
            (None, None) => random_seed(),
        };
        Ok(Self { run, spans: SplitMix64::new(mix64(random_seed())) })
    }

    /// The ids of a batch's trace and of its first span. A name without an index gives the ids of the window.
    pub(crate) fn trace(&self, BatchName { epoch, window, index }: BatchName) -> (TraceId, SpanId) {
        let index = index.map_or(0, |index| 1 + u64::from(index));
        let seed = [u64::from(epoch), window, index].iter().fold(self.run, |seed, part| SplitMix64::word(seed, *part));
        let word = |n| SplitMix64::word(seed, n).max(1);
        (TraceId::from(u128::from(word(0)) << 64 | u128::from(word(1))), SpanId::from(word(2)))
    }

    /// An id that no other span has.
    pub(crate) fn span(&mut self) -> SpanId {
        SpanId::from(self.spans.next_u64().max(1))
    }
}

/// A value of [`TRACEPARENT`] for the processes of a new run.
pub(crate) fn new_traceparent() -> String {
    let mut words = SplitMix64::new(mix64(random_seed()));
    let mut word = || words.next_u64().max(1);
    format!("00-{:016x}{:016x}-{:016x}-01", word(), word(), word())
}

/// The trace of a `traceparent`.
fn trace_of(traceparent: &str) -> Result<&str, Fault> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let hex = |part: &str, digits| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
    match parts[..] {
        [version, trace, parent, flags]
            if hex(version, 2)
                && hex(trace, 32)
                && hex(parent, 16)
                && hex(flags, 2)
                && trace.bytes().any(|b| b != b'0') =>
        {
            Ok(trace)
        }
        _ => Err(Fault::user(format!(
            "{TRACEPARENT} is {traceparent:?}, expected 00-TRACE-PARENT-FLAGS with 32, 16 and 2 hexadecimal digits"
        ))),
    }
}

fn text_hash(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |hash, byte| SplitMix64::word(hash, u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn all_processes_of_a_run_give_a_batch_one_trace_and_another_run_another() {
        let names = || (0..4).flat_map(|window| [None, Some(0), Some(1)].map(|index| (window, index)));
        let traces = |run: &TraceNames| -> Vec<_> {
            names().map(|(window, index)| run.trace(BatchName { epoch: 1, window, index })).collect()
        };
        let of = |parent, run| traces(&TraceNames::new(parent, run).unwrap());
        assert_eq!(of(Some(PARENT), Some("monday")), of(Some(PARENT), None));
        assert_eq!(of(None, Some("monday")), of(None, Some("monday")));
        let all = [
            of(Some(PARENT), None),
            of(None, Some("monday")),
            of(None, Some("tuesday")),
            of(None, None),
            of(None, None),
        ];
        assert_eq!(all.concat().iter().map(|trace| trace.0).collect::<HashSet<_>>().len(), 5 * 12);
    }

    #[test]
    fn a_traceparent_of_another_format_is_refused() {
        assert!(TraceNames::new(Some(&new_traceparent()), None).is_ok());
        for wrong in [
            "",
            "00-1-2-3",
            &PARENT[3..],
            &PARENT.replace('4', "x"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        ] {
            let said = TraceNames::new(Some(wrong), None).err().unwrap().to_string();
            assert!(said.contains("TRACEPARENT is") && said.contains("00-TRACE-PARENT-FLAGS"), "{said}");
        }
    }
}
