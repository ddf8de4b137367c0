//! The offset between the clocks of this process and the coordinator, measured by round trips (Cristian, 1989).

use std::time::Duration;

use forebay_actors::Track;

/// What must be added to a time of this process to get the coordinator's time. It comes from the shortest round trip: the coordinator's
/// time lies between the two ends of the round trip. If the uncorrected time lies there, too, as on one host, the offset is 0: a correction
/// by half a round trip of a busy host would let a batch arrive before it was sent. Otherwise the error is at most half of the round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    nanos: i64,
    shortest: Option<Duration>,
}

impl ClockOffset {
    /// A round trip began at `sent` by the clock of this process and lasted for `took`; the coordinator answered at `theirs`.
    pub(super) fn observe(&mut self, sent: Duration, took: Duration, theirs: Duration) {
        if self.shortest.is_none_or(|shortest| took < shortest) {
            let agrees = (sent..=sent + took).contains(&theirs);
            let middle = sent + took / 2;
            self.nanos = if agrees { 0 } else { nanos(theirs).saturating_sub(nanos(middle)) };
            self.shortest = Some(took);
        }
    }

    /// A time of this process by the clock of the coordinator.
    pub(super) fn corrected(&self, at: Duration) -> Duration {
        let by = Duration::from_nanos(self.nanos.unsigned_abs());
        if self.nanos < 0 { at.saturating_sub(by) } else { at.saturating_add(by) }
    }

    /// Slices with times of this process, by the clock of the coordinator.
    pub(crate) fn corrected_tracks(&self, mut tracks: Vec<Track>) -> Vec<Track> {
        tracks
            .iter_mut()
            .flat_map(|track| &mut track.slices)
            .for_each(|slice| slice.began = self.corrected(slice.began));
        tracks
    }
}

fn nanos(at: Duration) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_says_how_far_the_clocks_are_apart() {
        let ms = Duration::from_millis;
        let mut offset = ClockOffset::default();
        assert_eq!(offset.corrected(ms(50)), ms(50));
        // The coordinator is 1000 ms ahead. The reply was under way for longer than the request.
        offset.observe(ms(100), ms(40), ms(1000 + 110));
        assert_eq!(offset.corrected(ms(200)), ms(1190));
        offset.observe(ms(300), ms(2), ms(1000 + 301));
        assert_eq!(offset.corrected(ms(200)), ms(1200));
        offset.observe(ms(400), ms(80), ms(9000));
        assert_eq!(offset.corrected(ms(200)), ms(1200), "a longer one says less");
        let mut same = ClockOffset::default();
        same.observe(ms(100), ms(40), ms(139));
        assert_eq!(same.corrected(ms(200)), ms(200), "the reply was fast, the request slow");
        let mut behind = ClockOffset::default();
        behind.observe(ms(5000), ms(0), ms(1000));
        assert_eq!((behind.corrected(ms(5500)), behind.corrected(ms(10))), (ms(1500), ms(0)));
    }
}
