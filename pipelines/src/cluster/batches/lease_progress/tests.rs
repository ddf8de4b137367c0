//! Leases, terms, reports and drains, without a network.

use futures::FutureExt as _;

use super::*;

fn id(window: u64, index: u32) -> BatchId {
    BatchId { epoch: 0, window, index }
}

fn end(batches: u32, rows: u64, rejected: u64) -> Option<WindowEnd> {
    Some(WindowEnd { batches, rows, rejected })
}

fn lease(windows: std::ops::Range<u64>, term: u32) -> Lease {
    Lease { epoch: 0, windows, term }
}

/// The report that is due at once, if one is.
fn urgent(progress: &LeaseProgress) -> Option<Report> {
    progress.wait_for_urgent_report().now_or_never()?;
    let report = progress.take_report();
    assert!(progress.wait_until_reported().now_or_never().is_none(), "it is on its way");
    progress.reported();
    assert!(progress.wait_until_reported().now_or_never().is_some());
    Some(report)
}

fn done(first: u64, counts: &[(u64, u64, u64)]) -> Vec<DoneWindows> {
    let counts = counts.iter().map(|&(trained, rejected, batches)| RowCounts { trained, rejected, batches });
    vec![DoneWindows { epoch: 0, first, counts: counts.collect() }]
}

#[test]
fn windows_are_reported_as_they_are_done_and_the_end_of_a_lease_at_once() {
    let progress = LeaseProgress::default();
    progress.add(&lease(4..7, 1));
    assert!(progress.batch_sent(id(4, 0), 1, 10, None));
    assert!(progress.batch_sent(id(4, 1), 1, 7, end(2, 17, 3)));
    assert!(progress.batch_sent(id(5, 0), 1, 0, end(1, 0, 20)));
    progress.batch_done(id(5, 0));
    assert!(progress.wait_for_report().now_or_never().is_none(), "window 4 is before it");
    progress.batch_done(id(4, 1));
    assert_eq!(progress.done_before(id(4, 1)), 0);
    progress.batch_done(id(4, 0));
    progress.batch_done(id(4, 0));
    assert!(progress.wait_for_report().now_or_never().is_some());
    assert_eq!(urgent(&progress), None, "the lease goes on");
    assert_eq!(progress.take_report(), Report { done: done(4, &[(17, 3, 2), (0, 20, 1)]), gives_back: false });
    progress.reported();
    assert!(progress.batch_sent(id(6, 0), 1, 5, end(1, 5, 0)));
    progress.batch_done(id(6, 0));
    assert_eq!(urgent(&progress), Some(Report { done: done(6, &[(5, 0, 1)]), gives_back: false }));
    assert!(progress.is_empty());
    progress.batch_done(id(6, 0));
    assert!(progress.wait_for_report().now_or_never().is_none());
}

#[test]
fn batches_may_be_sent_in_any_order() {
    let progress = LeaseProgress::default();
    progress.add(&lease(0..1, 0));
    progress.batch_sent(id(0, 2), 0, 1, end(3, 21, 0));
    progress.batch_sent(id(0, 0), 0, 10, None);
    let mut room = std::pin::pin!(progress.wait_for_room(1));
    assert!(room.as_mut().now_or_never().is_none(), "batch 1 is not sent");
    for index in [2, 0, 1] {
        progress.batch_done(id(0, index));
    }
    assert_eq!(progress.done_before(id(0, 1)), 1);
    progress.batch_sent(id(0, 1), 0, 10, None);
    assert!(room.as_mut().now_or_never().is_some());
    progress.batch_done(id(0, 1));
    assert_eq!(urgent(&progress).map(|report| report.done), Some(done(0, &[(21, 0, 3)])));
}

#[test]
fn a_window_is_not_done_before_its_last_batch_is_sent() {
    let progress = LeaseProgress::default();
    progress.add(&lease(0..1, 0));
    progress.batch_sent(id(0, 0), 0, 10, None);
    progress.batch_done(id(0, 0));
    assert_eq!(urgent(&progress), None);
    progress.batch_sent(id(0, 1), 0, 1, end(2, 11, 0));
    progress.batch_done(id(0, 1));
    assert!(urgent(&progress).is_some());
}

#[test]
fn there_is_room_for_a_lease_when_all_batches_of_another_are_sent() {
    let progress = LeaseProgress::default();
    let room = || progress.wait_for_room(2).now_or_never().is_some();
    for start in [0, 2] {
        assert!(room());
        progress.add(&lease(start..start + 2, 0));
    }
    assert!(!room());
    let mut waiting = std::pin::pin!(progress.wait_for_room(2));
    progress.batch_sent(id(0, 0), 0, 10, end(1, 10, 0));
    progress.batch_sent(id(1, 0), 0, 10, None);
    assert!(waiting.as_mut().now_or_never().is_none());
    progress.batch_sent(id(1, 1), 0, 10, end(2, 20, 0));
    assert!(waiting.as_mut().now_or_never().is_some(), "though none of it is done");
    progress.add(&lease(4..6, 0));
    let mut waiting = std::pin::pin!(progress.wait_for_room(2));
    assert!(waiting.as_mut().now_or_never().is_none());
    progress.remove_lease_of(id(5, 0), 0);
    assert!(waiting.as_mut().now_or_never().is_some());
}

/// The batches of the earlier term are still on their way through the stages when the lease comes back.
#[test]
fn a_lost_lease_that_comes_back_does_not_count_batches_of_the_earlier_term() {
    let progress = LeaseProgress::default();
    progress.add(&lease(3..4, 0));
    assert!(progress.batch_sent(id(3, 0), 0, 10, None));
    progress.add(&lease(3..4, 1));
    assert!(!progress.batch_sent(id(3, 1), 0, 1, end(2, 11, 0)), "the new lease brings this batch again");
    // Its content is the same in every term, so the trainer's answer may be to the earlier one.
    progress.batch_done(id(3, 0));
    assert!(progress.batch_sent(id(3, 0), 1, 10, None));
    assert!(progress.batch_sent(id(3, 1), 1, 1, end(2, 11, 0)));
    progress.batch_done(id(3, 1));
    assert_eq!(urgent(&progress), None, "batch 0 was sent again, and its answer will come again");
    progress.batch_done(id(3, 0));
    assert_eq!(urgent(&progress).map(|report| report.done), Some(done(3, &[(11, 0, 2)])));
    assert!(progress.is_empty());
}

#[test]
fn a_refusal_of_an_earlier_term_leaves_the_new_lease() {
    let progress = LeaseProgress::default();
    progress.add(&lease(0..2, 2));
    progress.remove_lease_of(id(1, 0), 1);
    assert!(!progress.is_empty());
    assert!(progress.batch_sent(id(1, 0), 2, 10, end(1, 10, 0)));
    progress.remove_lease_of(id(1, 0), 2);
    assert!(progress.is_empty());
    assert!(!progress.batch_sent(id(0, 0), 2, 10, None), "another reader has it");
}

#[test]
fn an_earlier_lease_with_unsent_batches_ends_the_wait() {
    let progress = LeaseProgress::default();
    progress.add(&lease(4..6, 0));
    let mut waiting = std::pin::pin!(progress.wait_for_earlier_lease(id(4, 7)));
    assert!(waiting.as_mut().now_or_never().is_none(), "its own lease is not before it");
    progress.add(&lease(1..2, 1));
    assert!(waiting.as_mut().now_or_never().is_some());
    progress.batch_sent(id(1, 0), 1, 10, end(1, 10, 0));
    assert!(progress.wait_for_earlier_lease(id(4, 7)).now_or_never().is_none(), "all of it is sent");
}

#[test]
fn a_drain_finishes_the_windows_that_are_begun_and_gives_the_others_back() {
    let progress = LeaseProgress::default();
    progress.add(&lease(0..8, 0));
    progress.add(&lease(8..16, 0));
    assert!(progress.begin(0, 0, 0) && progress.begin(0, 1, 0));
    assert!(progress.batch_sent(id(0, 0), 0, 10, end(1, 10, 0)));
    progress.close();
    assert!(progress.wait_until_closed().now_or_never().is_some());
    assert!(progress.wants(0, 1) && !progress.wants(0, 2) && !progress.wants(0, 8));
    assert!(!progress.begin(0, 2, 0) && !progress.batch_sent(id(2, 0), 0, 10, None));
    progress.batch_done(id(0, 0));
    assert_eq!(urgent(&progress), Some(Report { done: done(0, &[(10, 0, 1)]), gives_back: false }), "1 is begun");
    assert!(progress.batch_sent(id(1, 0), 0, 9, end(1, 9, 1)));
    progress.batch_done(id(1, 0));
    assert_eq!(urgent(&progress), Some(Report { done: done(1, &[(9, 1, 1)]), gives_back: true }));
    assert!(progress.is_empty());
    // A lease that was under way when the reader was asked to shut down.
    progress.add(&lease(16..24, 0));
    assert_eq!(urgent(&progress), Some(Report { done: Vec::new(), gives_back: true }));
    assert_eq!(urgent(&progress), None);
}

/// Found by the simulation: a reader had sent batches when it got a lost lease before them, and was asked to shut down. It waited for its
/// batches, and the trainer for the window that the reader had not begun.
#[test]
fn in_order_a_window_that_is_not_begun_is_given_back_before_later_ones_are_done() {
    for in_order in [true, false] {
        let progress = LeaseProgress::new(in_order);
        progress.add(&lease(4..6, 0));
        assert!(progress.begin(0, 4, 0) && progress.batch_sent(id(4, 0), 0, 10, end(1, 10, 0)));
        progress.add(&lease(1..3, 1));
        assert!(progress.begin(0, 1, 1) && progress.batch_sent(id(1, 0), 1, 10, end(1, 10, 0)));
        progress.close();
        assert_eq!(urgent(&progress), None, "the first window is begun");
        progress.batch_done(id(1, 0));
        assert_eq!(urgent(&progress), Some(Report { done: done(1, &[(10, 0, 1)]), gives_back: in_order }));
        assert_eq!(progress.is_empty(), in_order);
    }
}

/// A bug: all readers were asked to shut down. One gave its windows back; another waited for the trainer to take later ones that it had
/// begun.
#[test]
fn in_order_windows_that_are_begun_are_given_back_if_nobody_takes_those_of_others() {
    for in_order in [true, false] {
        let progress = LeaseProgress::new(in_order);
        progress.add(&lease(4..6, 0));
        assert!(progress.begin(0, 4, 0) && progress.batch_sent(id(4, 0), 0, 10, end(1, 10, 0)));
        assert!(!progress.give_all_back(true), "it was not asked to shut down");
        progress.close();
        assert_eq!(urgent(&progress), None, "the window is begun");
        assert_eq!(progress.give_all_back(false), in_order);
        let report = in_order.then_some(Report { done: Vec::new(), gives_back: true });
        assert_eq!(urgent(&progress), report);
        assert_eq!(progress.is_empty(), in_order);
        assert_eq!(progress.wants(0, 4), !in_order);
        assert!(progress.give_all_back(true), "a trainer cannot be reached");
        let report = (!in_order).then_some(Report { done: Vec::new(), gives_back: true });
        assert_eq!(urgent(&progress), report);
        assert!(progress.is_empty());
    }
}

/// Found by the simulation: while the batch waited for room, the answer to its earlier term came. Then it was sent as if it came after
/// itself. The trainer refused it, which ended the run.
#[test]
fn a_batch_that_is_done_before_it_is_sent_does_not_count_as_before_itself() {
    let progress = LeaseProgress::default();
    progress.add(&lease(6..8, 0));
    assert!(progress.batch_sent(id(6, 0), 0, 10, None));
    // The reader loses the lease and gets it back.
    progress.add(&lease(6..8, 1));
    assert!(progress.batch_sent(id(6, 0), 1, 10, None));
    progress.batch_done(id(6, 0));
    assert_eq!((progress.done_before(id(6, 0)), progress.done_before(id(6, 1))), (0, 1));
}

#[test]
fn a_trainer_that_leaves_waits_until_all_is_reported_and_given_back() {
    let progress = LeaseProgress::default();
    let given_back = |progress: &LeaseProgress| progress.wait_until_given_back().now_or_never().is_some();
    assert!(given_back(&progress));
    progress.add(&lease(4..7, 0));
    assert!(progress.batch_sent(id(4, 0), 0, 10, end(1, 10, 0)));
    progress.close();
    assert!(!given_back(&progress));
    progress.batch_done(id(4, 0));
    assert!(!given_back(&progress), "nothing is reported");
    let report = progress.take_report();
    assert!(report.gives_back && report.done == done(4, &[(10, 0, 1)]));
    assert!(!given_back(&progress), "the report is on its way");
    progress.reported();
    assert!(given_back(&progress));
}
