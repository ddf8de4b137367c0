//! An assumption of a plan, and the formats of numbers in a plan.

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

pub(super) fn in_cores(cores: f64) -> String {
    format!("{cores} {}", if cores == 1.0 { "core" } else { "cores" })
}

pub(super) fn bits(bytes_per_second: f64) -> String {
    match 8.0 * bytes_per_second {
        b if b >= 1e9 => format!("{:.2} Gbit/s", b / 1e9),
        b => format!("{:.1} Mbit/s", b / 1e6),
    }
}

pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 3600.0 => format!("{:.2} h", s / 3600.0),
        s if s >= 60.0 => format!("{:.1} min", s / 60.0),
        s if s >= 1.0 || s == 0.0 => format!("{s:.1} s"),
        s => format!("{:.2} ms", 1e3 * s),
    }
}
