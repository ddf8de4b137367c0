//! Groups of keys: which group a key is in, and keys of a group.
//!
//! In a table with groups the highest byte of a key is the number of its group. So every holder of a key knows the kind of its row, and
//! equal values of two groups have two keys. The other 56 bits come from the hash: among 100 million keys of a group two share a row with a
//! chance of 7%.

/// The most groups besides the first.
pub const MOST_GROUPS: usize = 255;

const SHIFT: u32 = 56;

/// The group of a key of a table with groups.
///
/// ```
/// # use forebay_ps::{group_of, in_group};
/// assert_eq!(group_of(in_group(0x1234_5678_9abc_def0, 3)), 3);
/// ```
#[inline(always)]
pub fn group_of(key: u64) -> usize {
    (key >> SHIFT) as usize
}

/// The key in this group of a value with this hash.
#[inline(always)]
pub fn in_group(hash: u64, group: u8) -> u64 {
    hash << 8 >> 8 | u64::from(group) << SHIFT
}

/// The runs of neighbouring keys of one group: the group, where the run begins and where it ends.
pub(crate) fn runs(keys: &[u64]) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let mut at = 0;
    keys.chunk_by(|a, b| group_of(*a) == group_of(*b)).map(move |run| {
        let from = at;
        at += run.len();
        (group_of(run[0]), from..at)
    })
}
