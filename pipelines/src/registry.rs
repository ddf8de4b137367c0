//! The stages, sources and models of a user's program, under the names that a job says.

/// Stages, sources and models of your own, by name. The same registry serves every role of a cluster and evaluation.
#[derive(Clone, Debug, Default)]
pub struct Registry {}
