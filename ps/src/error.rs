//! What can go wrong in a table, and how it becomes a [`Fault`].

use forebay_actors::fault::{Fault, FaultKind};

/// Why a table refused. Nothing was changed unless the variant says so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableError {
    /// The configuration cannot be built.
    #[error("table `{table}`: {what}")]
    Config {
        /// The table.
        table: String,
        /// What was found, what was expected.
        what: String,
    },
    /// A slice has another length than its keys ask for.
    #[error(
        "table `{table}`: {found} {what} came with {keys} keys; expected {expected}, which is {per_key} per key of this \
         table's rows"
    )]
    Length {
        /// The table.
        table: String,
        /// What the values are, for instance `weights`.
        what: &'static str,
        /// Keys given.
        keys: usize,
        /// Values given.
        found: usize,
        /// Values that `keys` keys need.
        expected: usize,
        /// Values per key.
        per_key: usize,
    },
    /// Values that are NaN or infinite.
    #[error(
        "table `{table}`: {bad} of {total} {what} of part `{part}` are NaN or infinite, first at key {key:#018x}; \
         nothing was changed; lower the learning rate, clip gradients, or look for NaN in the dense columns"
    )]
    NotFinite {
        /// The table.
        table: String,
        /// What the values are, for instance `gradients`.
        what: &'static str,
        /// The first part that has such values.
        part: String,
        /// How many values of the part.
        bad: usize,
        /// Values of the part in all rows.
        total: usize,
        /// The first key that has one.
        key: u64,
    },
    /// Optimizer state that no run of the optimizer can reach.
    #[error("table `{table}`: the state of part `{part}` for key {key:#018x} is {found}; expected at least 0")]
    State {
        /// The table.
        table: String,
        /// The part.
        part: String,
        /// The first key.
        key: u64,
        /// The value.
        found: f32,
    },
    /// A key of a group that the table does not have.
    #[error("table `{table}`: key {key:#018x} is of group {group}; expected one below {groups}")]
    Group {
        /// The table.
        table: String,
        /// The key.
        key: u64,
        /// Its group.
        group: usize,
        /// Groups of the table.
        groups: usize,
    },
    /// A step of 0.
    #[error("table `{table}`: a push came with step 0; steps count from 1")]
    Step {
        /// The table.
        table: String,
    },
    /// A snapshot of the table is open; one at a time.
    #[error("table `{table}`: a snapshot began while another one is open; end that one first")]
    SnapshotOpen {
        /// The table.
        table: String,
    },
    /// No memory, or no row numbers, are left; rows before the one that failed were inserted.
    #[error("table `{table}`: no room for more than {rows} rows in one shard: {what}")]
    Full {
        /// The table.
        table: String,
        /// Rows the shard holds.
        rows: usize,
        /// What ran out.
        what: &'static str,
    },
}

/// The fault keeps the error as its source.
impl From<TableError> for Fault {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Full { .. } => Fault::external("a sparse table is full").because(error),
            TableError::SnapshotOpen { .. } => Fault::internal(error.to_string()).with_source(error),
            TableError::NotFinite { .. } => {
                Fault::user(error.to_string()).kind(FaultKind::NonFinite).with_source(error)
            }
            TableError::Config { .. }
            | TableError::Length { .. }
            | TableError::State { .. }
            | TableError::Group { .. }
            | TableError::Step { .. } => Fault::user(error.to_string()).kind(FaultKind::InvalidJob).with_source(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn the_fault_of_a_table_has_a_kind_and_keeps_the_error_and_its_text() {
        let table = || "t".to_owned();
        let nan =
            TableError::NotFinite { table: table(), what: "gradients", part: "w".into(), bad: 1, total: 2, key: 3 };
        for (error, kind) in [
            (nan, FaultKind::NonFinite),
            (TableError::Config { table: table(), what: "no parts".into() }, FaultKind::InvalidJob),
            (TableError::SnapshotOpen { table: table() }, FaultKind::Other),
        ] {
            let fault = Fault::from(error.clone());
            assert_eq!((fault.kind, fault.to_string()), (kind, error.to_string()));
            assert_eq!(fault.source().and_then(|e| e.downcast_ref::<TableError>()), Some(&error));
        }
    }
}
