//! How many machines a run needs, from the report of a smaller one.
//!
//! The method is operational analysis (Denning and Buzen, "The operational analysis of queueing network models", ACM Computing Surveys
//! 1978; Lazowska et al., "Quantitative System Performance", 1984, chapter 5). The report gives the demand of a row at each resource: CPU
//! seconds, bytes, or seconds of a stage. A resource is busy for demand / capacity per row, so the run is not faster than capacity / demand
//! rows per second at any resource: these are its asymptotic bounds. Batches under way are the customers of a closed network: at most `n`
//! batches pass in the sum of their service times and round trips, if `n` are under way. All functions depend on their arguments alone: no
//! files, no clock, no network.
//!
//! Read in this order: `profile.rs` (the measurements), `demand.rs` (the cost of a row), `traffic.rs` (bytes on the links), `options.rs`
//! with `assumption.rs` (the assumptions), `bounds.rs` (the speed of given machines), `growth.rs` (the number of keys), `tables.rs`
//! (memory), `search.rs` (the fewest machines), `reached.rs` and `assumed.rs`, `run_plan.rs` (the result).

mod assumed;
mod assumption;
mod bounds;
mod demand;
mod growth;
mod options;
mod profile;
mod reached;
mod run_plan;
mod search;
mod tables;
#[cfg(test)]
mod tests;
mod traffic;

pub use self::assumption::Assumption;
pub use self::bounds::Bound;
pub use self::options::{MachineKind, PlanOptions};
pub use self::profile::RunProfile;
pub use self::run_plan::{PlannedLink, PlannedRole, PlannedTable, RunPlan, plan};

use serde::Serialize;

/// How many machines have each role. Without readers the trainers read, without ps the only trainer holds the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Machines {
    /// Machines that read, parse and batch.
    pub readers: usize,
    /// Machines that hold the shards of the table.
    pub ps: usize,
    /// Machines that compute.
    pub trainers: usize,
}

impl Machines {
    /// One process that does everything.
    pub const ONE: Self = Self { readers: 0, ps: 0, trainers: 1 };
}
