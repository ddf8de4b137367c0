//! The messages of an event file that a run needs: a part of TensorFlow's `event.proto` and `summary.proto`, with their field
//! numbers. Readers skip fields that a message lacks.

use prost::{Message, Oneof};

/// `Event`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub(super) what: Option<What>,
}

/// The content of an event.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
    /// The first event of a file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(StepSummary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// `Summary`: numbers of one step.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StepSummary {
    #[prost(message, repeated, tag = "1")]
    pub(super) value: Vec<Value>,
}

/// `Summary.Value`: a number and its name.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    /// In a `oneof` of the original: not left out if it is 0.
    #[prost(float, optional, tag = "2")]
    pub(super) simple_value: Option<f32>,
}

/// `SessionLog`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionLog {
    /// [`START`].
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

/// `SessionLog.SessionStatus`: training begins, or begins again, at the event's step. Numbers of an earlier session for this step and later
/// steps are void.
pub(super) const START: i32 = 1;
