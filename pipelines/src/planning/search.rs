//! The machines that are fast enough and cost least, in an hour or for the whole run.

use super::Machines;

/// A search for the cheapest run next looks at machines that are this many times as fast.
const STEP: f64 = 1.1;

/// A search for the cheapest run ends after this many steps without cheaper machines: at four times the speed of the cheapest so far.
const STEPS: usize = 15;

/// More machines are chosen if the run costs at most this part.
const CHEAPER: f64 = 0.99;

/// Machines with a rate of at least `needed` on which a run costs little. `time` gives the length of the run at a rate. [`cheapest`] finds
/// the machines for `needed` and for higher rates, because more machines may save more than they cost: a second trainer shares the ps of
/// the first one. `None` if no machines up to `most` are fast enough.
pub(super) fn cheapest_run(
    rate: impl Fn(Machines) -> f64,
    needed: f64,
    prices: [f64; 3],
    most: Machines,
    time: impl Fn(f64) -> f64,
) -> Option<Machines> {
    let money = |machines: Machines| cost(machines, prices) * time(rate(machines));
    let mut best = cheapest(&rate, needed, prices, most)?;
    let (mut faster, mut steps) = (rate(best), 0);
    while steps < STEPS {
        faster *= STEP;
        steps += 1;
        let Some(found) = cheapest(&rate, faster, prices, most) else { break };
        if money(found) < CHEAPER * money(best) {
            (best, steps) = (found, 0);
        }
    }
    Some(best)
}

/// What machines cost in an hour.
fn cost(Machines { readers, ps, trainers }: Machines, prices: [f64; 3]) -> f64 {
    readers as f64 * prices[0] + ps as f64 * prices[1] + trainers as f64 * prices[2]
}

/// The machines with a rate of at least `needed` whose cost in an hour is lowest: `prices` of a reader, a ps and a trainer. Among machines
/// of the same cost, takes the fewest trainers, then the fewest ps. `None` if no machines up to `most` are fast enough.
///
/// The search assumes that more machines of a role do not lower the rate. The first reader and the first ps may lower it, because they take
/// work from the trainers and add a link. So each of the four kinds of placement is searched by itself: for each number of trainers,
/// bisection finds the fewest ps and readers. The number of readers does not depend on the number of ps, because they share no resource.
pub(super) fn cheapest(
    rate: impl Fn(Machines) -> f64,
    needed: f64,
    prices: [f64; 3],
    most: Machines,
) -> Option<Machines> {
    let cost = |machines: Machines| cost(machines, prices);
    let enough = |machines: Machines| rate(machines) >= needed;
    let mut best: Option<Machines> = None;
    for trainers in 1..=most.trainers {
        if best.is_some_and(|best| cost(best) <= trainers as f64 * prices[2]) {
            break;
        }
        for (with_readers, with_ps) in [(false, false), (true, false), (false, true), (true, true)] {
            let there = |is: bool, most: usize| if is { most } else { 0 };
            let (most_readers, most_ps) = (there(with_readers, most.readers), there(with_ps, most.ps));
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

    #[test]
    fn a_run_is_cheaper_on_machines_that_share_what_one_needs_anyway() {
        // A ps has the shards of ten trainers.
        let rate = |Machines { ps, trainers, .. }: Machines| (10 * ps).min(trainers) as f64;
        let found = |needed: f64, trainer: f64| {
            cheapest_run(rate, needed, [1.0, 5.0, trainer], Machines { readers: 100, ps: 100, trainers: 100 }, |rate| {
                1e3 / rate
            })
        };
        let machines = |ps, trainers| Some(Machines { readers: 0, ps, trainers });
        assert_eq!(found(1.0, 1.0), machines(1, 10));
        assert_eq!(found(10.0, 1.0), machines(1, 10), "twice as many cost as much");
        assert_eq!(found(11.0, 1.0), machines(2, 20));
        assert_eq!(found(3.0, 1e4), machines(1, 3), "less than one in a hundred would be saved");
        assert_eq!(found(2e3, 1.0), None);
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
            let found = cheapest(rate, needed, prices, Machines { readers: 9, ps: 9, trainers: 9 });
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
