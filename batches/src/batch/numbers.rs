//! Numbers from 0 for the integers of a key space, if the integers lie close together.

use forebay_ps::SlotHasher;

use super::direct::DirectPass;
use super::part::Piece;
use crate::flow::SlotIntegers;

/// The most numbers. The table that finds equal ones has 4 bytes for each number. A batch reads and writes the entries of its own integers
/// only.
const MOST: u64 = 1 << 20;

/// The number of an integer is its difference from the least integer; a missing value has the number after the last integer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    hasher: SlotHasher,
    /// The integer with the number 0.
    pub(super) least: i64,
    /// The number of the greatest integer.
    last: u32,
    /// The number of a missing value.
    pub(super) missing: u32,
}

impl Numbers {
    /// For all rows of these pieces; `None` if their integers lie too far apart.
    pub(super) fn of(integers: &[(&Piece, &SlotIntegers)], hasher: SlotHasher) -> Option<Self> {
        let mut range: Option<(i64, i64)> = None;
        for (piece, integers) in integers {
            let Some((least, greatest)) = integers.bounds(piece.from..piece.to) else { continue };
            let (least, greatest) =
                range.map_or((least, greatest), |known| (least.min(known.0), greatest.max(known.1)));
            if greatest.wrapping_sub(least) as u64 >= MOST {
                return None;
            }
            range = Some((least, greatest));
        }
        let (least, greatest) = range?;
        let last = greatest.wrapping_sub(least) as u32;
        let numbers = Self { hasher, least, last, missing: last + 1 };
        // A single integer has the key of a missing value. If it may occur, both have one number.
        let missing = numbers.of_integer(hasher.integer(hasher.missing())).unwrap_or(numbers.missing);
        Some(Self { missing, ..numbers })
    }

    /// All numbers are below this limit.
    pub(super) fn limit(&self) -> usize {
        self.last as usize + 2
    }

    fn of_integer(&self, integer: i64) -> Option<u32> {
        let number = integer.wrapping_sub(self.least) as u64;
        (number <= u64::from(self.last)).then_some(number as u32)
    }

    /// The number of the integer, or of the missing value, with this key.
    pub(super) fn of_key(&self, key: u64) -> Option<u32> {
        if key == self.hasher.missing() { Some(self.missing) } else { self.of_integer(self.hasher.integer(key)) }
    }

    /// Appends the keys of the numbers of `pass`, which began with as many keys as `unique` has.
    pub(super) fn append_keys(&self, pass: &DirectPass<'_>, unique: &mut Vec<u64>) {
        let least = self.least;
        unique.extend(self.hasher.ints(pass.firsts(), |number| least.wrapping_add(number.into())));
        if let Some(place) = pass.place_of(self.missing) {
            unique[place as usize] = self.hasher.missing();
        }
    }
}
