//! Chooses the replicas of `parse` and `batch`, and the threads of dense compute, while a run goes on, from its meters.
//!
//! The true rate of a stage, its rows per occupied second, determines the replicas that it needs for any throughput of the run. So all
//! stages get their replicas in one step (Kalavri et al., "Three steps is all you need: fast, accurate, automatic scaling decisions for
//! distributed streaming dataflows", OSDI 2018). The tuner then measures the effect of the change. If there is none, it undoes the change,
//! and does not try it again while the rates stay as they are. Replicas and the CPU use of everything else together stay within the cores
//! of the run. Replicas are ordered, so the model does not depend on them.
//!
//! Read in this order: `observation.rs` (an interval, as the meters show it), `choice.rs` (the replicas that follow from it),
//! `recorded_trials.rs` (whether a change has helped), `tuner.rs` (when to change them, and when to go back; no clock, no threads),
//! `thread_tuner.rs` (the same for dense compute), `tuning_thread.rs` (drives both, one change at a time).

mod choice;
mod observation;
mod recorded_trials;
#[cfg(test)]
mod tests;
mod thread_tuner;
mod tuner;
mod tuning_thread;

pub(crate) use self::tuning_thread::TuningThread;
