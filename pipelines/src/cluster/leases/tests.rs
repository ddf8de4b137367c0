//! Readers take, finish, lose and give back leases in any order, without a network.

use proptest::prelude::*;

use super::*;

fn data(windows: u64, epochs: u32) -> DataPlan {
    DataPlan { epochs, rows: windows * 10 - 3, windows, fingerprint: 0 }
}

/// The report of the windows `first..end`.
fn done(data: &DataPlan, epoch: u32, first: u64, end: u64) -> DoneWindows {
    let rows = |window: u64| ((window + 1) * 10).min(data.rows) - window * 10;
    let counts = |window| RowCounts { trained: rows(window) - 1, rejected: 1, batches: 1 };
    DoneWindows { epoch, first, counts: (first..end).map(counts).collect() }
}

fn whole(data: &DataPlan, lease: &Lease) -> DoneWindows {
    done(data, lease.epoch, lease.windows.start, lease.windows.end)
}

fn lease(answer: LeaseReply) -> Lease {
    match answer {
        LeaseReply::Lease(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// What a reader believes: its leases, each with the windows that it has reported.
type Beliefs = BTreeMap<u32, Vec<(Lease, u64)>>;

proptest! {
    /// Readers join, are lost, give windows back, report parts of leases, report them twice, and report leases that they have
    /// lost: every window counts once, the row counts add up, and the book holds no more than the leases that are not done.
    #[test]
    fn every_window_is_done_once(
        windows in 1u64..40, epochs in 1u32..3, lease_windows in 1u64..9,
        steps in prop::collection::vec((0u32..4, 0u8..12, 1u64..5), 0..200),
    ) {
        let data = data(windows, epochs);
        let mut book = LeaseBook::new(data.clone(), 10, lease_windows);
        let (mut beliefs, mut last_terms) = (Beliefs::new(), BTreeMap::new());
        let mut marked = vec![false; (windows * u64::from(epochs)) as usize];
        let place = |epoch: u32, window: u64| (u64::from(epoch) * windows + window) as usize;
        let mut act = |book: &mut LeaseBook, reader: u32, what: u8, n: u64| {
            let held = beliefs.entry(reader).or_default();
            match what {
                0 => { book.return_leases_of(reader); held.clear(); }
                // The reader is lost and does not know it.
                1 => { book.return_leases_of(reader); }
                2 => { book.give_back(reader); held.clear(); }
                3..=6 => if let LeaseReply::Lease(lease) = book.lease_next_range(reader) {
                    let term = last_terms.insert((lease.epoch, lease.windows.end), lease.term);
                    assert!(term.is_none_or(|term: u32| lease.term == term + 1), "terms rise one by one");
                    let start = lease.windows.start;
                    held.push((lease, start));
                },
                _ => if let Some((lease, reported)) = held.last_mut() {
                    let end = (*reported + n).min(lease.windows.end);
                    let report = done(&data, lease.epoch, *reported, end);
                    book.complete(&report).unwrap();
                    if what == 11 { book.complete(&report).unwrap(); }
                    (*reported..end).for_each(|window| marked[place(lease.epoch, window)] = true);
                    *reported = end;
                    if end == lease.windows.end { held.pop(); }
                },
            }
            let first_open = marked.iter().position(|done| !done).unwrap_or(marked.len()) as u64;
            assert_eq!(book.first_open(), ((first_open / windows) as u32, first_open % windows));
            let ranges = book.done_windows();
            let is_done = |at: u64| {
                ranges.get(&((at / windows) as u32)).is_some_and(|all| all.iter().any(|range| range.contains(&(at % windows))))
            };
            assert_eq!((0..marked.len() as u64).map(is_done).collect::<Vec<_>>(), marked);
            assert_eq!(book.windows_done(), marked.iter().filter(|done| **done).count() as u64);
        };
        for (reader, what, n) in steps {
            act(&mut book, reader, what, n);
        }
        for reader in 0..4 {
            act(&mut book, reader, 0, 1);
        }
        while !book.is_finished() {
            act(&mut book, 7, 3, 1);
            act(&mut book, 7, 7, 99);
        }
        prop_assert_eq!(book.lease_next_range(1), LeaseReply::Finished);
        prop_assert!(book.held.is_empty() && book.returned.is_empty());
        let counts = book.counts();
        prop_assert_eq!(counts.trained + counts.rejected, data.rows * u64::from(epochs));
        prop_assert_eq!(counts.batches, windows * u64::from(epochs));
    }
}

#[test]
fn what_was_trained_on_before_is_not_given_out() {
    use crate::checkpoint::BatchOrder;
    use forebay_batches::{BatchId, WindowEnd};
    let (data, mut trained) = (data(7, 3), TrainedBatches::default());
    // All of epoch 0 but window 3, windows 0, 1 and 4 of epoch 1, and one of two batches of window 5.
    let windows = (0..7).filter(|w| *w != 3).map(|w| (0, w)).chain([(1, 0), (1, 1), (1, 4)]);
    for (epoch, window) in windows {
        let id = BatchId { epoch, window, index: 0 };
        trained.window_ends(id, WindowEnd { batches: 1, rows: 9, rejected: 1 });
        trained.batch_done(id, 9, BatchOrder::Any);
    }
    trained.batch_done(BatchId { epoch: 1, window: 5, index: 0 }, 4, BatchOrder::Any);
    let mut book = LeaseBook::new(data.clone(), 10, 2);
    book.skip(&trained);
    assert_eq!((book.first_open(), book.windows_done()), ((0, 3), 9));
    assert_eq!(book.counts(), RowCounts { trained: 81, rejected: 9, batches: 9 });
    let given = std::iter::from_fn(|| match book.lease_next_range(0) {
        LeaseReply::Lease(lease) => Some((lease.epoch, lease.windows, lease.term)),
        _ => None,
    });
    let given: Vec<_> = given.collect();
    assert_eq!(
        given,
        [(0, 3..4, 0), (1, 2..4, 0), (1, 5..7, 0), (2, 0..2, 0), (2, 2..4, 0), (2, 4..6, 0), (2, 6..7, 0)]
    );
}

#[test]
fn leases_are_as_large_as_asked_if_every_reader_gets_several() {
    assert_eq!(windows_per_lease(4, &data(7, 10), 1), 4);
    assert_eq!(windows_per_lease(4, &data(7, 10), 5), 3);
    assert_eq!(windows_per_lease(4, &data(7, 1), 1), 1);
    assert_eq!(windows_per_lease(4, &data(7, 1), 2), 1, "at least one window");
    assert_eq!(windows_per_lease(4, &data(1_000, 1), 8), 4);
}

#[test]
fn a_lost_lease_is_given_out_first_with_the_next_term_and_counts_once() {
    let data = data(6, 1);
    let mut book = LeaseBook::new(data.clone(), 10, 2);
    let first = lease(book.lease_next_range(0));
    let second = lease(book.lease_next_range(1));
    assert_eq!((first.windows.clone(), second.windows.clone()), (0..2, 2..4));
    assert_eq!(book.return_leases_of(0), 1);
    let again = lease(book.lease_next_range(1));
    assert_eq!((again.windows.clone(), again.term), (0..2, 1));
    assert_eq!(book.first_open(), (0, 0));
    // The reader that seemed lost had done all of it.
    book.complete(&whole(&data, &first)).unwrap();
    book.complete(&whole(&data, &again)).unwrap();
    assert_eq!(book.counts().trained, 18);
    assert_eq!(book.first_open(), (0, 2));
}

#[test]
fn the_first_windows_of_a_lease_count_and_the_rest_is_given_out_again() {
    let data = data(8, 1);
    let mut book = LeaseBook::new(data.clone(), 10, 4);
    assert_eq!(lease(book.lease_next_range(0)).windows, 0..4);
    book.complete(&done(&data, 0, 0, 3)).unwrap();
    assert_eq!((book.first_open(), book.windows_done()), ((0, 3), 3));
    assert!(!book.is_drained(false));
    assert_eq!(book.give_back(0), 1);
    assert!(book.is_drained(false));
    assert_eq!((book.lost_leases(), book.returned_leases()), (0, 1), "it is not lost");
    let rest = lease(book.lease_next_range(1));
    assert_eq!((rest.windows.clone(), rest.term), (3..4, 1));
    book.complete(&whole(&data, &rest)).unwrap();
    assert_eq!(book.first_open(), (0, 4));
}

#[test]
fn a_lost_lease_goes_to_readers_that_have_enough_and_can_end_a_drain() {
    let mut book = LeaseBook::new(data(6, 1), 10, 2);
    let first = lease(book.lease_next_range(0));
    assert_eq!(book.lease_returned_range(1), LeaseReply::Wait);
    lease(book.lease_next_range(1));
    assert!(!book.is_drained(true) && !book.is_drained(false));
    book.return_leases_of(0);
    assert_eq!(book.returned_leases(), 1);
    assert!(book.is_drained(true), "windows 2 and 3 wait for 0 and 1");
    assert!(!book.is_drained(false));
    assert_eq!(lease(book.lease_returned_range(1)).windows, first.windows);
    assert!(!book.is_drained(true));
    book.return_leases_of(1);
    assert!(book.is_drained(true) && book.is_drained(false));
}

#[test]
fn missing_rows_and_windows_that_were_not_given_out_are_faults() {
    let data = data(4, 1);
    let mut book = LeaseBook::new(data.clone(), 10, 2);
    lease(book.lease_next_range(0));
    let counts = RowCounts { trained: 8, rejected: 1, batches: 1 };
    let report = |epoch, first| DoneWindows { epoch, first, counts: vec![counts] };
    let mut said = |epoch, first| book.complete(&report(epoch, first)).unwrap_err().to_string();
    assert!(
        said(0, 0).contains("window 0 of epoch 0 has 10 rows, but 8 were trained on and 1 rejected"),
        "{}",
        said(0, 0)
    );
    assert!(said(0, 1).contains("before a window ahead of it"), "{}", said(0, 1));
    for (epoch, first) in [(0, 2), (1, 0), (u32::MAX, u64::MAX)] {
        assert!(said(epoch, first).contains("which no reader was given"), "{}", said(epoch, first));
    }
    assert_eq!((book.windows_done(), book.first_open()), (0, (0, 0)));
}
