//! Fences beside push ids: each batch changes rows once, for any processes of a rank that push it, in any order.

use std::collections::BTreeMap;

use forebay_ps::{ExactlyOnce, PushAnswer, PushId, PushOutcome, Stamp, Trainer};
use proptest::prelude::*;

proptest! {
    /// A trainer and the one that has replaced it push batches, each perhaps several times. `fenced`: the ps tells them apart.
    #[test]
    fn a_batch_is_applied_once_whichever_process_pushes_it(
        pushes in prop::collection::vec((any::<bool>(), 0u32..12), 0..60), fenced: bool,
    ) {
        let mut once: ExactlyOnce<u32> = ExactlyOnce::default();
        let (mut applied, mut successor) = (BTreeMap::<u32, u32>::new(), false);
        for (replaced, batch) in pushes {
            let incarnation = if fenced && !replaced { 2 } else { 1 };
            let trainer = Some(Trainer { rank: 0, incarnation });
            let stamp = Stamp { id: PushId { series: 3, index: batch }, trainer, round: None };
            let merge = |_: Vec<_>| unreachable!("there are no rounds");
            let apply = |batch: &u32, _| {
                *applied.entry(*batch).or_default() += 1;
                Ok(())
            };
            let outcome = once.push(Some(stamp), 1, batch, merge, apply).map(|pushed| match pushed {
                PushAnswer::Done(_, outcome) => outcome,
                PushAnswer::Waiting(_) => unreachable!("there are no rounds"),
            });
            successor |= !replaced;
            if fenced && replaced && successor {
                // The rows that the successor sees do not change under a batch whose gradients are of older rows.
                prop_assert!(outcome.is_err());
                continue;
            }
            let known = applied.get(&batch) == Some(&1);
            prop_assert!(known && matches!(outcome, Ok(PushOutcome::Applied | PushOutcome::Already)));
        }
        prop_assert!(applied.values().all(|times| *times == 1), "{applied:?}");
    }
}
