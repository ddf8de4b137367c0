//! Cuts the dense values into blocks, and checks their gradients; for client and server.

use std::ops::Range;

use forebay_actors::{Fault, FaultKind};

/// Blocks begin at multiples of this many values.
const ALIGN: usize = 16;

/// The blocks of `len` values over `processes`: even, one after the other, each but the last of a multiple of 16 values.
pub fn blocks(len: usize, processes: usize) -> Vec<Range<usize>> {
    let (units, processes) = (len.div_ceil(ALIGN), processes.max(1));
    let at = |process: usize| (units * process / processes * ALIGN).min(len);
    (0..processes).map(|process| at(process)..at(process + 1)).collect()
}

pub(super) fn check_finite(grads: &[f32]) -> Result<(), Fault> {
    match grads.iter().filter(|grad| !grad.is_finite()).count() {
        0 => Ok(()),
        bad => Err(Fault::user(format!(
            "{bad} of {} dense gradients are NaN or infinite; nothing was changed; lower the learning rate or clip \
             gradients",
            grads.len()
        ))
        .kind(FaultKind::NonFinite)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_even_and_aligned(len in 0usize..5000, processes in 1usize..20) {
            let blocks = blocks(len, processes);
            prop_assert_eq!(blocks.len(), processes);
            prop_assert_eq!((blocks[0].start, blocks[processes - 1].end), (0, len));
            prop_assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(blocks.iter().all(|block| block.start % 16 == 0 || block.start == len));
            let (least, most) = (blocks.iter().map(Range::len).min(), blocks.iter().map(Range::len).max());
            prop_assert!(most.unwrap() - least.unwrap() < 32);
        }
    }
}
