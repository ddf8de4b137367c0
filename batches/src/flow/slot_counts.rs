//! The counts of one slot in a batch. `batch` makes them during the de-duplication of the keys.

/// The counts of one slot in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// Values of all rows together; a missing value of a slot without lists is one.
    pub values: u32,
    /// Rows without a value: an empty list, or a missing value.
    pub empty: u32,
    /// Where the keys of the slot's key space end in the batch's list of keys. They begin where the previous key space ends.
    pub keys_end: u32,
}
