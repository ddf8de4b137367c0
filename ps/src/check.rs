//! The checks of a table before it changes anything: lengths, and numbers that training must not see.
//!
//! A refusal names the part and the first key. If all is well, a check is one pass over the values at the speed of
//! memory.

use crate::error::TableError;
use crate::groups::group_of;
use crate::lifetime::RowUsage;
use crate::simd::{Kernel, dispatch};
use crate::table::Layout;

struct AllFinite<'a>(&'a [f32]);

impl Kernel for AllFinite<'_> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        let bad = |values: &[f32]| values.iter().fold(0, |bad, v| bad | u32::from(v.to_bits() & EXPONENT == EXPONENT));
        self.0.chunks(1024).all(|values| bad(values) == 0)
    }
}

impl Layout {
    fn check_length(&self, what: &'static str, keys: usize, found: usize, per_key: usize) -> Result<(), TableError> {
        let expected = keys.saturating_mul(per_key);
        if found == expected {
            return Ok(());
        }
        Err(TableError::Length { table: self.table.clone(), what, keys, found, expected, per_key })
    }

    /// Checks that all values are finite. The error names the first part that has others. `place` gives a part's offset and length within a
    /// row of `per_key`.
    fn check_finite(
        &self,
        what: &'static str,
        keys: &[u64],
        values: &[f32],
        per_key: usize,
        place: impl Fn(&crate::table::Part) -> (usize, usize),
    ) -> Result<(), TableError> {
        if dispatch(AllFinite(values)) {
            return Ok(());
        }
        for part in &self.parts {
            let (at, len) = place(part);
            let (mut bad, mut first) = (0, None);
            for (key, row) in keys.iter().zip(values.chunks_exact(per_key)) {
                let here = row[at..at + len].iter().filter(|v| !v.is_finite()).count();
                bad += here;
                if here > 0 {
                    first.get_or_insert(*key);
                }
            }
            if let Some(key) = first {
                let (table, part, total) = (self.table.clone(), part.name.clone(), keys.len() * len);
                return Err(TableError::NotFinite { table, what, part, bad, total, key });
            }
        }
        // The part of a group's state that lies beyond the state of the widest group.
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            let (table, part, total) = (self.table.clone(), "of a group".into(), values.len());
            let bad = values.iter().filter(|v| !v.is_finite()).count();
            return Err(TableError::NotFinite { table, what, part, bad, total, key: keys[at / per_key] });
        }
        Ok(())
    }

    /// Whether the table has the groups of these keys.
    pub(crate) fn check_groups(&self, keys: &[u64]) -> Result<(), TableError> {
        let groups = self.groups.len();
        match keys.iter().find(|key| group_of(**key) >= groups) {
            Some(&key) if groups > 0 => {
                Err(TableError::Group { table: self.table.clone(), key, group: group_of(key), groups })
            }
            _ => Ok(()),
        }
    }

    /// Whether a push may be applied.
    pub(crate) fn check_push(&self, keys: &[u64], grads: &[f32], step: u64) -> Result<(), TableError> {
        self.check_length("gradients", keys.len(), grads.len(), self.row_dim)?;
        self.check_groups(keys)?;
        if step == 0 {
            return Err(TableError::Step { table: self.table.clone() });
        }
        self.check_finite("gradients", keys, grads, self.row_dim, |part| (part.weight_at, part.dim))
    }

    /// Whether rows of a snapshot may be taken in.
    pub(crate) fn check_import(
        &self,
        keys: &[u64],
        weights: &[f32],
        state: Option<&[f32]>,
        usages: &[RowUsage],
    ) -> Result<(), TableError> {
        self.check_groups(keys)?;
        if !usages.is_empty() {
            self.check_length("usages of rows", keys.len(), usages.len(), 1)?;
            if let Some((key, usage)) =
                keys.iter().zip(usages).find(|(_, usage)| !(usage.score >= 0.0 && usage.score.is_finite()))
            {
                let (table, part) = (self.table.clone(), "score".into());
                return Err(TableError::State { table, part, key: *key, found: usage.score });
            }
        }
        self.check_length("weights", keys.len(), weights.len(), self.row_dim)?;
        self.check_finite("weights", keys, weights, self.row_dim, |part| (part.weight_at, part.dim))?;
        let Some(state) = state else { return Ok(()) };
        self.check_length("floats of state", keys.len(), state.len(), self.state_dim)?;
        if self.state_dim == 0 {
            return Ok(());
        }
        self.check_finite("floats of state", keys, state, self.state_dim, |part| (part.state_at, part.state_len))?;
        for (key, row) in keys.iter().zip(state.chunks_exact(self.state_dim)) {
            let layout = self.groups.get(group_of(*key)).unwrap_or(self);
            for part in &layout.parts {
                let squares = part.optimizer.squares(part.dim, &row[part.state_at..][..part.state_len]);
                if let Some(found) = squares.iter().find(|v| **v < 0.0) {
                    let (table, part) = (self.table.clone(), part.name.clone());
                    return Err(TableError::State { table, part, key: *key, found: *found });
                }
            }
        }
        Ok(())
    }
}
