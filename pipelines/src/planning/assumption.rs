//! An assumption of a plan, and the format of its numbers.

use serde::Serialize;

/// An assumption of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assumption {
    /// What is assumed, with its value.
    pub what: String,
    /// What changes it: an argument of the command, or a field of the job.
    pub change: String,
}

/// Three significant digits.
pub(super) fn count(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.3} G", v / 1e9),
        v if v >= 1e6 => format!("{:.3} M", v / 1e6),
        v => forebay_actors::commas(v.round() as u64),
    }
}
