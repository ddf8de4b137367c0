//! The machines that are fast enough and cost least.

use super::Machines;

/// The most machines of a role that are looked at: a job takes no more.
pub(super) const MOST: usize = 1024;

/// The machines with a rate of at least `needed` whose cost is lowest: `prices` of a reader, a ps and a trainer. Of those with the same
/// cost, those with fewest trainers, then fewest ps. `None` if no machines up to `most` of each role are fast enough.
///
/// More machines of a role that is there must not lower the rate; the first reader and the first ps may, since they take work off the
/// trainers and add a link. So each of the four kinds of placement is searched by itself: for each number of trainers, the fewest ps and
/// readers follow by bisection. The number of readers does not depend on that of the ps: they share no resource.
pub(super) fn cheapest(rate: impl Fn(Machines) -> f64, needed: f64, prices: [f64; 3], most: usize) -> Option<Machines> {
    let cost = |machines: Machines| {
        let Machines { readers, ps, trainers } = machines;
        readers as f64 * prices[0] + ps as f64 * prices[1] + trainers as f64 * prices[2]
    };
    let enough = |machines: Machines| rate(machines) >= needed;
    let mut best: Option<Machines> = None;
    for trainers in 1..=most {
        if best.is_some_and(|best| cost(best) <= trainers as f64 * prices[2]) {
            break;
        }
        for (with_readers, with_ps) in [(false, false), (true, false), (false, true), (true, true)] {
            let (most_readers, most_ps) = (if with_readers { most } else { 0 }, if with_ps { most } else { 0 });
            let all = Machines { readers: most_readers, ps: most_ps, trainers };
            if !enough(all) {
                continue;
            }
            let ps = fewest(with_ps, most_ps, |ps| enough(Machines { ps, ..all }));
            let readers = fewest(with_readers, most_readers, |readers| enough(Machines { readers, ps, ..all }));
            let found = Machines { readers, ps, trainers };
            if best.is_none_or(|best| cost(found) < cost(best)) {
                best = Some(found);
            }
        }
    }
    best
}

/// The smallest number from 1 to `most` for which `enough` holds, which holds for `most`; 0 if there are to be none.
fn fewest(any: bool, most: usize, enough: impl Fn(usize) -> bool) -> usize {
    if !any {
        return 0;
    }
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low.midpoint(high);
        if enough(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, by trying all numbers of machines.
    fn by_brute_force(rate: impl Fn(Machines) -> f64, needed: f64, prices: [f64; 3], most: usize) -> Option<f64> {
        let mut best: Option<f64> = None;
        for readers in 0..=most {
            for ps in 0..=most {
                for trainers in 1..=most {
                    if rate(Machines { readers, ps, trainers }) >= needed {
                        let cost = readers as f64 * prices[0] + ps as f64 * prices[1] + trainers as f64 * prices[2];
                        best = Some(best.map_or(cost, |best| best.min(cost)));
                    }
                }
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_other_machines_are_cheaper(
            each in prop::array::uniform3(0.1..3.0_f64),
            more_work in prop::array::uniform2(0.0..2.0_f64),
            trip in 0.0..2.0_f64,
            allowed in prop::array::uniform4(any::<bool>()),
            prices in prop::array::uniform3(0.1..5.0_f64),
            needed in 0.05..8.0_f64,
        ) {
            // As `Costs`: capacities of roles, work of the absent ones at the trainers, and batches under way.
            let rate = |Machines { readers, ps, trainers }: Machines| {
                if !allowed[usize::from(readers > 0) * 2 + usize::from(ps > 0)] || (ps == 0 && trainers > 1) {
                    return 0.0;
                }
                let [r, p, t] = [readers, ps, trainers].map(|n| n as f64);
                let mut work = 1.0 / each[2];
                let mut rate = f64::INFINITY;
                if readers > 0 { rate = rate.min(r * each[0]) } else { work += more_work[0] }
                if ps > 0 { rate = rate.min(p * each[1]) } else { work += more_work[1] }
                let under_way = t / (work + if ps > 0 { trip + 1.0 / (p * each[1]) } else { 0.0 });
                rate.min(t / work).min(under_way)
            };
            let found = cheapest(rate, needed, prices, 9);
            let expected = by_brute_force(rate, needed, prices, 9);
            let cost = found.map(|Machines { readers, ps, trainers }| {
                readers as f64 * prices[0] + ps as f64 * prices[1] + trainers as f64 * prices[2]
            });
            prop_assert_eq!(cost.is_some(), expected.is_some());
            if let (Some(cost), Some(expected), Some(found)) = (cost, expected, found) {
                prop_assert!((cost - expected).abs() < 1e-9, "{:?} costs {}, others {}", found, cost, expected);
                prop_assert!(rate(found) >= needed);
            }
        }
    }
}
