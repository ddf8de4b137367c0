//! A target item and a history of items for each row, and what the two add to the logit of a click.
//!
//! Items belong to groups, and most items of a row's history come from three groups. The logit grows with the number of history items of
//! the target's group. Attention to the target can find that number; a sum or a mean of the history mixes it with all others.

use super::numbers::{ln, random, unit};

const GROUPS: u64 = 64;
const ITEMS_OF_GROUP: f64 = 256.0;
/// The weight in the logit of the logarithm of the number.
const WEIGHT: f64 = 2.0;
/// Rows on which the mean is fitted; far from any row that is asked for.
const FITTED: u64 = 4096;
const FITTED_FROM: u64 = 1 << 62;

/// Histories of seeded rows.
#[derive(Clone, Debug)]
pub(crate) struct Histories {
    stream: u64,
    /// The most items of a history.
    most: u32,
    /// The mean of the logarithms of the lengths.
    mean: f64,
}

/// Items of a run of rows.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(crate) targets: Vec<i32>,
    /// Where each history begins and ends in `histories`.
    pub(crate) offsets: Vec<i32>,
    pub(crate) histories: Vec<i32>,
}

impl Histories {
    /// Histories of 0 to `most` items.
    pub(crate) fn new(seed: u64, most: u32) -> Self {
        let mut planted = Self { stream: random(seed ^ 0x6869_7374, u64::from(most)), most, mean: 0.0 };
        let mut items = Items::default();
        planted.mean = (0..FITTED).map(|row| planted.draw(FITTED_FROM + row, &mut items)).sum::<f64>() / FITTED as f64;
        planted
    }

    /// Appends the items of a row. Returns what they add to its logit.
    pub(crate) fn add_row(&self, row: u64, items: &mut Items) -> f64 {
        if items.offsets.is_empty() {
            items.offsets.push(0);
        }
        let logarithm = self.draw(row, items);
        items.offsets.push(items.histories.len() as i32);
        WEIGHT * (logarithm - self.mean)
    }

    /// Appends the items. Returns the logarithm of 1 + the number of items of the target's group.
    fn draw(&self, row: u64, items: &mut Items) -> f64 {
        let own = random(self.stream, row);
        let interests = [0, 1, 2].map(|i| random(own, i) % GROUPS);
        let length = random(own, 3) % (u64::from(self.most) + 1);
        // One of its own groups with a probability of `share` / 256, else any group.
        let group = |bits: u64, share: u64| {
            if bits & 0xff < share { interests[(bits >> 8) as usize % 3] } else { (bits >> 16) % GROUPS }
        };
        let target = group(random(own, 4), 128);
        items.targets.push(self.item(target, random(own, 5)));
        let mut alike = 0;
        for i in 0..length {
            let of = group(random(own, 6 + 2 * i), 205);
            items.histories.push(self.item(of, random(own, 7 + 2 * i)));
            alike += u32::from(of == target);
        }
        ln(1.0 + f64::from(alike))
    }

    /// An item of a group, some of them more often than others: a number from 0 that does not show the group.
    fn item(&self, group: u64, bits: u64) -> i32 {
        let u = unit(bits);
        let item = group + GROUPS * (u * u * ITEMS_OF_GROUP) as u64;
        // A bijection of 31 bits.
        ((item.wrapping_mul(0x9e37_79b1).wrapping_add(self.stream)) & 0x7fff_ffff) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_have_every_length_and_the_logit_follows_the_items_alike() {
        let planted = Histories::new(3, 20);
        let (mut items, mut lengths, mut sum) = (Items::default(), [0; 21], 0.0);
        for row in 0..5000 {
            sum += planted.add_row(row, &mut items);
            lengths[(items.offsets[row as usize + 1] - items.offsets[row as usize]) as usize] += 1;
        }
        assert!(lengths.iter().all(|&rows| rows > 150), "{lengths:?}");
        assert!((sum / 5000.0).abs() < 0.1, "{sum}");
        let mut distinct = items.histories.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 12_000 && distinct[0] >= 0, "{}", distinct.len());
    }

    #[test]
    fn a_row_depends_on_the_seed_and_its_number_alone() {
        let (planted, mut all, mut one) = (Histories::new(3, 7), Items::default(), Items::default());
        let logits: Vec<f64> = (0..10).map(|row| planted.add_row(row, &mut all)).collect();
        assert_eq!(planted.add_row(9, &mut one), logits[9]);
        assert_eq!(one.histories, all.histories[all.offsets[9] as usize..]);
        let mut other = Items::default();
        Histories::new(4, 7).add_row(9, &mut other);
        assert_ne!(other.targets, one.targets);
    }
}
