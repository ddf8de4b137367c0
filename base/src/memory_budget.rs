//! The memory that a process may take for what it could do without: more replicas, more bytes ahead.

use crate::{free_memory, resident_memory};

/// A limit of the memory of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBudget(Option<u64>);

impl MemoryBudget {
    /// This many bytes for the process; `None`: what its cgroup and its machine have free.
    pub fn new(bytes: Option<u64>) -> Self {
        Self(bytes)
    }

    /// Bytes that are left in a process that has `resident` bytes; infinite if that is not known.
    pub fn free_beside(self, resident: u64) -> f64 {
        let free = match self.0 {
            Some(budget) => Some(budget.saturating_sub(resident)),
            None => free_memory(),
        };
        free.map_or(f64::INFINITY, |free| free as f64)
    }

    /// Bytes that are left in this process; infinite if that is not known.
    pub fn free(self) -> f64 {
        self.free_beside(resident_memory().map_or(0, |memory| memory.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_what_the_process_does_not_have() {
        assert_eq!(MemoryBudget::new(Some(1000)).free_beside(600), 400.0);
        assert_eq!(MemoryBudget::new(Some(100)).free_beside(600), 0.0, "it has more than it may");
        assert_eq!(MemoryBudget::new(Some(1)).free(), 0.0, "this process has more than a byte");
        assert!(MemoryBudget::new(None).free() > 0.0);
    }
}
