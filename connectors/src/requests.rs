//! Which requests read the wanted ranges of a file: near ranges are read as one.

use std::ops::Range;

/// Ranges nearer than this are read as one: less than what a store sends within the latency of a request.
const GAP: u64 = 256 * 1024;

/// A request that holds this much takes no further column: several requests at once use more bandwidth than one.
const ENOUGH: u64 = 8 << 20;

/// The requests for these sorted ranges: each range lies in exactly one of them.
pub(crate) fn coalesce(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut requests: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match requests.last_mut() {
            // Ranges that overlap must be joined at any size.
            Some(last)
                if range.start < last.end
                    || (range.start - last.end <= GAP && range.end.saturating_sub(last.start) <= ENOUGH) =>
            {
                last.end = last.end.max(range.end);
            }
            _ => requests.push(range.clone()),
        }
    }
    requests
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_range_lies_in_one_request_and_requests_do_not_overlap(
            mut ranges in prop::collection::vec((0u64..50 << 20, 0u64..12 << 20).prop_map(|(s, l)| s..s + l), 0..30)
        ) {
            ranges.sort_by_key(|r| r.start);
            let requests = coalesce(&ranges);
            for range in &ranges {
                prop_assert!(requests.iter().any(|q| q.start <= range.start && range.end <= q.end));
            }
            for pair in requests.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            let wanted: u64 = ranges.iter().map(|r| r.end - r.start).sum();
            let asked: u64 = requests.iter().map(|r| r.end - r.start).sum();
            prop_assert!(asked <= wanted + GAP * ranges.len() as u64);
        }
    }

    #[test]
    fn near_ranges_are_joined_and_large_ones_are_not() {
        assert_eq!(coalesce(&[0..10, 20..30, 30..40]), vec![0..10 + 30]);
        assert_eq!(coalesce(&[0..10, GAP + 11..GAP + 20]), [0..10, GAP + 11..GAP + 20]);
        assert_eq!(coalesce(&[0..ENOUGH, ENOUGH..ENOUGH + 5]), [0..ENOUGH, ENOUGH..ENOUGH + 5]);
    }
}
