//! Several processes that train one model: readers, parameter servers and trainers.
pub(crate) mod batches;
pub(crate) mod leases;
pub(crate) mod members;
