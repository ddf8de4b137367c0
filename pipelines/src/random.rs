//! Random numbers that depend on a seed and a counter alone, so that a run can be repeated and resumed.
//!
//! Comes in: a seed. Goes out: permutations. Nothing blocks.

/// The splitmix64 step (Steele, Lea, Flood 2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A permutation of `0..n`, each equally likely (Fisher and Yates), the same for the same `(seed, stream, n)`.
#[derive(Debug)]
pub(crate) struct Permutation(Vec<u32>);

impl Permutation {
    /// Stream number `stream` of `seed`.
    pub(crate) fn new(seed: u64, stream: u64, n: usize) -> Self {
        let mut state = seed;
        state = splitmix(&mut state) ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        let mut order: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            // Multiply-shift instead of a remainder; its bias for n < 2^32 is below 2^-32.
            let j = ((u128::from(splitmix(&mut state)) * (i as u128 + 1)) >> 64) as usize;
            order.swap(i, j);
        }
        Self(order)
    }

    pub(crate) fn into_vec(self) -> Vec<u32> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_once_and_every_stream_another_order() {
        let one = Permutation::new(7, 0, 1000).into_vec();
        let mut sorted = one.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_ne!(one, sorted);
        assert_eq!(one, Permutation::new(7, 0, 1000).into_vec());
        assert_ne!(one, Permutation::new(7, 1, 1000).into_vec());
        assert_ne!(one, Permutation::new(8, 0, 1000).into_vec());
    }
}
