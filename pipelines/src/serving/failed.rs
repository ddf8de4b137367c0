//! A model or a delta that a follower could not load, and when it tries again. A folder that is copied file by file is whole only at the
//! end, and a damaged folder need not be read at every look.

use forebay_actors::Fault;

use super::outage::same_outage_or;

/// The most looks between two tries.
const MOST_LOOKS: u32 = 32;

/// Something that could not be loaded.
pub(super) struct Failed {
    pub(super) fault: Fault,
    /// Looks between this try and the next one: twice as many each time.
    looks: u32,
    /// The looks that are left until the next try.
    left: u32,
}

impl Failed {
    /// `before`: the failure of the previous try to load the same thing. While a store cannot be reached, its fault stays.
    pub(super) fn new(fault: Fault, before: Option<&Self>) -> Self {
        let looks = before.map_or(1, |before| (before.looks * 2).min(MOST_LOOKS));
        Self { fault: same_outage_or(before.map(|before| &before.fault), fault), looks, left: looks }
    }

    /// Whether to try again at this look.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_twice_as_far_apart_each_time_up_to_a_limit() {
        let mut failed = Failed::new(Fault::user("cut"), None);
        let waits: Vec<usize> = (0..7)
            .map(|_| {
                let looks = (1..).find(|_| failed.is_due()).unwrap();
                failed = Failed::new(Fault::user("cut"), Some(&failed));
                looks
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32]);
    }
}
