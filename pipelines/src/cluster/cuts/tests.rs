use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// All trainers take part.
const NONE: BTreeSet<u32> = BTreeSet::new();

/// A trainer as the state machine sees it: its gate, and the orders that it follows.
#[derive(Default)]
struct Trainer {
    looked_up: u64,
    applied: u64,
    most: Option<u64>,
    follows: CutOrder,
    stopped_for: Option<u64>,
}

impl Trainer {
    /// What it reports, if it has something to report.
    fn report(&mut self) -> Option<CutReport> {
        let quiet = self.most.is_some_and(|most| self.looked_up >= most) && self.looked_up == self.applied;
        match self.follows {
            CutOrder::Hold { cut } => Some(CutReport::Held { cut, looked_up: self.looked_up }),
            CutOrder::Stop { cut, .. } if quiet && self.stopped_for != Some(cut) => {
                self.stopped_for = Some(cut);
                Some(CutReport::Stopped { cut, done: Vec::new(), kept: None })
            }
            _ => None,
        }
    }

    fn follow(&mut self, order: CutOrder) {
        if order == self.follows {
            return;
        }
        self.most = match order {
            CutOrder::GoOn => None,
            CutOrder::Hold { .. } | CutOrder::Stop { after: None, .. } => Some(self.looked_up),
            CutOrder::Stop { after, .. } => after,
        };
        self.follows = order;
    }
}

fn asks(trainer: &mut Trainer, rank: usize, cuts: &mut Cuts) {
    if let Some(report) = trainer.report() {
        cuts.report(rank as u32, report).unwrap();
    }
    trainer.follow(cuts.order(rank as u32));
}

/// One event of a run: a trainer works or asks, time passes, or the leader takes a step.
#[derive(Clone, Copy, Debug)]
enum Event {
    LooksUp(usize),
    Applies(usize),
    Asks(usize),
    Leads,
    Seconds(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0usize..3).prop_map(Event::LooksUp),
        3 => (0usize..3).prop_map(Event::Applies),
        4 => (0usize..3).prop_map(Event::Asks),
        2 => Just(Event::Leads),
        1 => (0u64..8).prop_map(Event::Seconds),
    ]
}

proptest! {
    /// From the report that all have stopped until the leader hears that its cut is whole, no trainer looks up a batch, and all batches are
    /// applied. If trainers share their steps, all have applied the same steps. No trainer waits forever.
    #[test]
    fn all_stand_still_while_a_cut_is_taken(in_step: bool, events in prop::collection::vec(event(), 0..300)) {
        let mut cuts = Cuts::new(3, in_step, MINUTE);
        let mut trainers: [Trainer; 3] = Default::default();
        let (mut now, mut number, mut stopped) = (Instant::now(), 0, None);
        let looked_up = |trainers: &[Trainer; 3]| trainers.each_ref().map(|trainer| trainer.looked_up);
        let mut whole = 0;
        for event in events {
            match event {
                Event::LooksUp(at) => {
                    // A step is over when all have pushed; then the next batch is looked up.
                    let behind = trainers.iter().map(|trainer| trainer.applied).min().unwrap();
                    let trainer = &mut trainers[at];
                    if trainer.most.is_none_or(|most| trainer.looked_up < most) && (!in_step || trainer.looked_up == behind) {
                        trainer.looked_up += 1;
                    }
                }
                Event::Applies(_) if in_step => {
                    let [a, b, c] = looked_up(&trainers);
                    if a == b && b == c {
                        trainers.iter_mut().for_each(|trainer| trainer.applied = a);
                    }
                }
                Event::Applies(at) => trainers[at].applied = (trainers[at].applied + 1).min(trainers[at].looked_up),
                Event::Asks(at) => asks(&mut trainers[at], at, &mut cuts),
                Event::Leads => match stopped.take() {
                    // After the last cut, whatever became of it, another begins.
                    None if cuts.is_given_up(number) => {
                        number += 1;
                        cuts.stop(number, 1, now);
                    }
                    None => stopped = cuts.stopped(number, &NONE).is_some().then(|| looked_up(&trainers)),
                    Some(then) => {
                        if cuts.go_on(number, &NONE) {
                            whole += 1;
                            prop_assert_eq!(looked_up(&trainers), then, "a trainer went on");
                            prop_assert!(trainers.iter().all(|trainer| trainer.applied == trainer.looked_up));
                            prop_assert!(!in_step || then.iter().all(|n| *n == then[0]), "{:?}", then);
                            prop_assert!(cuts.go_on(number, &NONE), "a request that is sent again");
                        }
                    }
                },
                Event::Seconds(seconds) => {
                    now += Duration::from_secs(seconds);
                    cuts.tick(&NONE, now);
                }
            }
        }
        cuts.tick(&NONE, now + 2 * MINUTE);
        for (at, trainer) in trainers.iter_mut().enumerate() {
            asks(trainer, at, &mut cuts);
            prop_assert_eq!(trainer.most, None, "a gate stays closed");
        }
        prop_assert!(whole <= number);
    }
}

#[test]
fn a_cut_is_taken_before_the_step_that_no_trainer_has_passed() {
    let (mut cuts, now) = (Cuts::new(2, true, MINUTE), Instant::now());
    let held = |cut, looked_up| CutReport::Held { cut, looked_up };
    let stopped = |cut| CutReport::Stopped { cut, done: Vec::new(), kept: None };
    assert_eq!(cuts.order(0), CutOrder::GoOn);
    cuts.stop(7, 1, now);
    assert_eq!((cuts.order(0), cuts.order(1)), (CutOrder::Hold { cut: 7 }, CutOrder::Hold { cut: 7 }));
    cuts.report(0, held(7, 5)).unwrap();
    cuts.report(1, held(6, 99)).unwrap();
    assert_eq!(cuts.order(1), CutOrder::Hold { cut: 7 }, "a report on another cut");
    cuts.report(1, held(7, 4)).unwrap();
    assert_eq!(cuts.order(1), CutOrder::Stop { cut: 7, after: Some(5), checkpoint: 1 });
    cuts.report(1, stopped(7)).unwrap();
    assert!(cuts.stopped(7, &NONE).is_none());
    cuts.report(0, stopped(7)).unwrap();
    assert!(cuts.stopped(7, &NONE).is_some() && cuts.stopped(8, &NONE).is_none());
    assert!(cuts.go_on(7, &NONE) && cuts.go_on(7, &NONE) && !cuts.go_on(8, &NONE));
    cuts.stop(7, 1, now);
    assert_eq!(cuts.order(1), CutOrder::GoOn, "a late request of a cut that is over");
    assert!(cuts.report(2, stopped(7)).unwrap_err().to_string().contains("trainer 2"));
}

#[test]
fn a_cut_that_takes_too_long_is_given_up_and_the_next_may_take_longer() {
    let (mut cuts, now) = (Cuts::new(2, false, MINUTE), Instant::now());
    cuts.stop(1, 1, now);
    cuts.report(1, CutReport::Stopped { cut: 1, done: Vec::new(), kept: None }).unwrap();
    assert_eq!(cuts.tick(&NONE, now + FIRST_TIMEOUT), None);
    assert_eq!(cuts.tick(&NONE, now + FIRST_TIMEOUT + Duration::from_secs(1)), Some(vec![0]));
    assert!(cuts.is_given_up(1) && !cuts.go_on(1, &NONE));
    assert_eq!(cuts.order(0), CutOrder::GoOn);
    cuts.stop(2, 1, now);
    assert_eq!(cuts.tick(&NONE, now + FIRST_TIMEOUT + Duration::from_secs(1)), None);
    assert_eq!(cuts.tick(&NONE, now + 3 * FIRST_TIMEOUT), Some(vec![0, 1]));
}

#[test]
fn a_cut_waits_for_no_trainer_that_has_left_and_is_given_up_if_one_joins_while_it_is_open() {
    let (mut cuts, now, absent) = (Cuts::new(3, false, MINUTE), Instant::now(), [1].into());
    let stops = |cuts: &mut Cuts, cut, rank| {
        cuts.report(rank, CutReport::Stopped { cut, done: Vec::new(), kept: None }).unwrap();
    };
    cuts.stop(1, 1, now);
    stops(&mut cuts, 1, 0);
    assert!(cuts.stopped(1, &absent).is_none(), "trainer 2 goes on");
    stops(&mut cuts, 1, 2);
    assert!(cuts.stopped(1, &NONE).is_none());
    assert_eq!(cuts.stopped(1, &absent).map(|stopped| stopped.len()), Some(2));
    assert!(cuts.go_on(1, &absent));
    // One that has stopped before it leaves counts like the others.
    cuts.stop(2, 1, now);
    (0..3).for_each(|rank| stops(&mut cuts, 2, rank));
    assert_eq!(cuts.stopped(2, &absent).map(|stopped| stopped.len()), Some(3));
    cuts.give_up();
    assert!(cuts.is_given_up(2) && !cuts.go_on(2, &absent));
    cuts.stop(3, 1, now);
    stops(&mut cuts, 3, 0);
    assert_eq!(cuts.tick(&absent, now + 2 * MINUTE), Some(vec![2]));
}
