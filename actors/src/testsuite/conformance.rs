//! The stages of this crate follow the rules. `tests/layering` looks for their names here.

use std::marker::PhantomData;

use super::check_stage;
use super::tests::{Bag, bags};
use crate::closures::Each;
use crate::context::StageCx;

#[test]
fn closures() {
    let drops_every_other = |bag: Bag, cx: &StageCx| {
        let kept = bag.lineage.seq.is_multiple_of(2);
        if !kept {
            cx.ledger().reject("odd", bag.rows as u64);
        }
        kept.then_some(bag)
    };
    check_stage(move || Each { what: "filter", each: drops_every_other, takes: PhantomData }, bags);
    let halves = |bag: Bag, _: &StageCx| {
        let half = bag.rows / 2;
        let lineage = bag.lineage.clone();
        [Bag { rows: half, lineage }, Bag { rows: bag.rows - half, ..bag }]
    };
    check_stage(move || Each { what: "flat_map", each: halves, takes: PhantomData }, bags);
}
