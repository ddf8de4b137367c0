//! Finds equal values of a key space: equal keys, or equal integers. `batch` hashes each different integer once.

use std::collections::VecDeque;

use forebay_ps::SlotHasher;

use super::direct::{Direct, DirectPass};
use super::numbers::Numbers;
use super::part::Piece;
use super::places::{Places, Staged};
use crate::dedup::{Dedup, Pass};
use crate::flow::SlotKeys;

/// The values of the slots of one key space in a part.
#[derive(Clone, Copy, Debug)]
pub(super) enum SpaceValues {
    Keys,
    /// Integers, one for each row, that have the keys of this hasher.
    Integers(SlotHasher),
    /// Integers that lie close together.
    Numbers(Numbers),
}

impl SpaceValues {
    /// The values of `slots`, the slots of a key space, in `pieces`.
    pub(super) fn of(pieces: &VecDeque<Piece>, slots: &[usize]) -> Self {
        let all = slots.iter().flat_map(|&slot| pieces.iter().map(move |piece| (piece, &piece.batch.slots[slot])));
        let integers: Option<Vec<_>> = all
            .map(|(piece, keys)| match keys {
                SlotKeys::Integers(integers) => Some((piece, integers)),
                _ => None,
            })
            .collect();
        let integers = integers.unwrap_or_default();
        let Some(hasher) = integers.first().map(|(_, integers)| integers.hasher()) else { return Self::Keys };
        if integers.iter().any(|(_, integers)| integers.hasher() != hasher) {
            return Self::Keys;
        }
        Numbers::of(&integers, hasher).map_or(Self::Integers(hasher), Self::Numbers)
    }

    /// Whether the values are staged even if their order does not change.
    pub(super) fn are_integers(&self) -> bool {
        !matches!(self, Self::Keys)
    }

    /// Takes the values of `slot`.
    pub(super) fn stage(&self, staged: &mut Staged, pieces: &VecDeque<Piece>, slot: usize) {
        match self {
            Self::Keys => staged.fill(pieces, slot),
            Self::Integers(hasher) => staged.fill_integers(pieces, slot, hasher.integer(hasher.missing())),
            Self::Numbers(numbers) => staged.fill_numbers(pieces, slot, numbers.least, numbers.missing),
        }
    }

    /// Starts a pass over up to `values` values of a batch, which has `base` keys so far.
    pub(super) fn start<'a>(
        &self,
        dedup: &'a mut Dedup,
        direct: &'a mut Direct,
        values: usize,
        base: usize,
    ) -> SpacePass<'a> {
        match *self {
            Self::Keys => SpacePass::Keys(dedup.start(values, base)),
            Self::Integers(hasher) => SpacePass::Integers(dedup.start(values, base), hasher),
            Self::Numbers(numbers) => SpacePass::Numbers(direct.start(numbers.limit(), values, base), numbers),
        }
    }
}

/// A pass over the values of one key space of one batch.
pub(super) enum SpacePass<'a> {
    Keys(Pass<'a>),
    Integers(Pass<'a>, SlotHasher),
    Numbers(DirectPass<'a>, Numbers),
}

impl SpacePass<'_> {
    /// De-duplicates the values of one slot of `batch`: all rows of `pieces`, or the rows `order` of `staged`.
    pub(super) fn add(
        &mut self,
        places: &mut Places,
        (batch, slot): (usize, usize),
        pieces: &VecDeque<Piece>,
        staged: &Staged,
        order: Option<&[u32]>,
    ) {
        match (self, order) {
            (Self::Keys(pass), Some(order)) => places.add_in_order(batch, slot, staged, order, pass),
            (Self::Keys(pass), None) => places.add(batch, slot, pieces, pass),
            (Self::Integers(pass, _), order) => {
                places.add_values(batch, slot, &staged.keys, order, |values, places| pass.add(values, places));
            }
            (Self::Numbers(pass, _), order) => {
                places.add_values(batch, slot, &staged.numbers, order, |values, places| pass.add(values, places));
            }
        }
    }

    /// The place of a key of this pass.
    pub(super) fn place_of(&self, key: u64) -> Option<u32> {
        match self {
            Self::Keys(pass) => pass.place_of(key),
            Self::Integers(pass, hasher) => pass.place_of(hasher.integer(key) as u64),
            Self::Numbers(pass, numbers) => numbers.of_key(key).and_then(|number| pass.place_of(number)),
        }
    }

    /// Appends the keys of this pass, each once, in the order of first occurrence.
    pub(super) fn append_keys(&self, unique: &mut Vec<u64>) {
        match self {
            Self::Keys(pass) => unique.extend_from_slice(pass.firsts()),
            Self::Integers(pass, hasher) => unique.extend(hasher.ints(pass.firsts(), |integer| integer as i64)),
            Self::Numbers(pass, numbers) => numbers.append_keys(pass, unique),
        }
    }
}
