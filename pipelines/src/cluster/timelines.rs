//! What the stages and services of all processes did when: at the end of its part of a run each process sends its slices to the
//! coordinator, and the first trainer gets them, one process after the other.
//!
//! Times are on the coordinator's clock. A process sends at most [`MOST_SLICES`], the first ones and the newest ones of each replica, and
//! the coordinator keeps at most [`MOST_KEPT`] of all processes, as the bytes that came.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_actors::{BatchName, Doing, Fault, Lineage, Track, TrackSlice};
use serde::{Deserialize, Serialize};

use super::clock_offset::ClockOffset;
use super::member::Member;
use super::members::Role;
use super::messages::MemberId;

/// Most slices that a process sends.
const MOST_SLICES: usize = 6144;

/// The part of a replica's slices that are its first ones.
const FIRST_PART: usize = 4;

/// The largest timeline of a process, as JSON.
pub(super) const MOST_BYTES: usize = 1 << 20;

/// Most bytes of all timelines that the coordinator keeps. The trace leaves out the timelines of further processes.
const MOST_KEPT: usize = 64 << 20;

/// The slices of all processes must come within this time.
const MOST_TIME: Duration = Duration::from_secs(10);

/// The timeline of one process of a run: what its stages and services did, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessTimeline {
    /// Its role and rank, for instance `reader 1`.
    pub process: String,
    /// A track for each replica of each stage, and for each service. Times are since 1970 by the clock of the coordinator.
    pub tracks: Vec<Track>,
}

/// `timeline`: a member sends its slices.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimelineRequest {
    pub(super) member: MemberId,
    pub(super) timeline: SentTimeline,
}

/// `next_timeline`: the first trainer asks for the slices of the next process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NextTimelineRequest {
    pub(super) member: MemberId,
    /// The process whose slices it got last.
    pub(super) after: Option<(Role, u32)>,
}

/// The reply: the slices of the next process; `None` after the last one.
pub(super) type NextTimelineReply = Option<((Role, u32), SentTimeline)>;

/// The slices of a process on the wire: numbers, because there are thousands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SentTimeline {
    /// When the first slice began, in nanoseconds since 1970.
    from: u64,
    tracks: Vec<SentTrack>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentTrack {
    stage: String,
    replica: usize,
    left_out: u64,
    /// For each slice: nanoseconds from `from` to its begin; its nanoseconds; epoch, split, seq and row of the lineage; rows; window + 1 if
    /// the batch has a name, else 0; its number in the window + 1 if it was cut from its window, else 0.
    batches: Vec<[u64; 9]>,
    /// Begin and time as above, and the place of the name of the wait in `names`.
    waits: Vec<(u64, u64, usize)>,
    /// Begin and time as above, the place of the name of the call in `names`, items.
    calls: Vec<(u64, u64, usize, u64)>,
    names: Vec<String>,
}

impl SentTimeline {
    /// The slices of `tracks`, at most [`MOST_BYTES`] as JSON. `offset`: the offset of the clock of their times.
    pub(super) fn of(tracks: &[Track], offset: ClockOffset) -> Self {
        let mut most = MOST_SLICES;
        loop {
            let sent = Self::with(tracks, offset, most);
            if most == 0 || serde_json::to_vec(&sent).is_ok_and(|json| json.len() <= MOST_BYTES) {
                return sent;
            }
            most /= 2;
        }
    }

    /// At most `most` slices, as many of each track.
    fn with(tracks: &[Track], offset: ClockOffset, most: usize) -> Self {
        let of_each = most / tracks.len().max(1);
        let slices = tracks.iter().flat_map(|track| &track.slices);
        let from = slices.map(|slice| nanos(offset.corrected(slice.began))).min().unwrap_or_default();
        let begin = |slice: &TrackSlice| nanos(offset.corrected(slice.began)) - from;
        let tracks = tracks.iter().map(|track| {
            let Track { stage, replica, slices, left_out } = track;
            let first = if slices.len() > of_each { of_each / FIRST_PART } else { slices.len() };
            let newest = slices.len() - (of_each - first).min(slices.len() - first);
            let mut sent = SentTrack {
                stage: stage.clone(),
                replica: *replica,
                left_out: left_out + (newest - first) as u64,
                ..SentTrack::default()
            };
            slices[..first].iter().chain(&slices[newest..]).for_each(|slice| sent.add(begin(slice), slice));
            sent
        });
        Self { from, tracks: tracks.collect() }
    }

    /// The tracks, each with its slices in the order in which they ended.
    fn tracks(self) -> Vec<Track> {
        let Self { from, tracks } = self;
        let track = |track: SentTrack| {
            let SentTrack { stage, replica, left_out, batches, waits, calls, names } = track;
            let name_at = |at: usize| names.get(at).cloned().unwrap_or_default();
            let slice = |began: u64, took: u64, what| TrackSlice {
                began: Duration::from_nanos(from.saturating_add(began)),
                took: Duration::from_nanos(took),
                what,
            };
            let batches = batches.into_iter().map(|[began, took, epoch, split, seq, row, rows, window, index]| {
                let (epoch, split) = (epoch as u32, split as u32);
                let index = index.checked_sub(1).map(|index| index as u32);
                let name = window.checked_sub(1).map(|window| BatchName { epoch, window, index });
                let lineage = Lineage { epoch, split, seq, row };
                slice(began, took, Doing::Batch { lineage, rows: rows as usize, name })
            });
            let waits = waits.into_iter().map(|(began, took, what)| slice(began, took, Doing::Wait(name_at(what))));
            let calls = calls
                .into_iter()
                .map(|(began, took, what, items)| slice(began, took, Doing::Call { name: name_at(what), items }));
            let mut slices: Vec<TrackSlice> = batches.chain(waits).chain(calls).collect();
            slices.sort_by_key(|slice| slice.began.saturating_add(slice.took));
            Track { stage, replica, slices, left_out }
        };
        tracks.into_iter().map(track).collect()
    }
}

impl SentTrack {
    fn add(&mut self, began: u64, slice: &TrackSlice) {
        let took = nanos(slice.took);
        match &slice.what {
            Doing::Batch { lineage: Lineage { epoch, split, seq, row }, rows, name } => {
                let window = name.map_or(0, |name| name.window.saturating_add(1));
                let index = name.and_then(|name| name.index).map_or(0, |index| u64::from(index) + 1);
                let (epoch, split, rows) = (u64::from(*epoch), u64::from(*split), *rows as u64);
                self.batches.push([began, took, epoch, split, *seq, *row, rows, window, index]);
            }
            Doing::Wait(what) => {
                let at = self.place_of(what);
                self.waits.push((began, took, at));
            }
            Doing::Call { name, items } => {
                let at = self.place_of(name);
                self.calls.push((began, took, at, *items));
            }
        }
    }

    fn place_of(&mut self, name: &String) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.clone());
            self.names.len() - 1
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl ProcessTimeline {
    pub(super) fn new((role, rank): (Role, u32), sent: SentTimeline) -> Self {
        Self { process: format!("{role} {rank}"), tracks: sent.tracks() }
    }
}

/// Asks for the slices of the other processes, one after the other. Those that do not come in time are left out.
pub(super) async fn of_others(member: &Member) -> Vec<ProcessTimeline> {
    let mut found = Vec::new();
    let all = async {
        let mut after = None;
        loop {
            let request = NextTimelineRequest { member: member.id(), after };
            let next: NextTimelineReply = member.request_once("next_timeline", &request).await?;
            let Some((at, sent)) = next else { return Ok::<(), Fault>(()) };
            found.push(ProcessTimeline::new(at, sent));
            after = Some(at);
        }
    };
    match tokio::time::timeout(MOST_TIME, all).await {
        Ok(Ok(())) => {}
        Ok(Err(fault)) => tracing::warn!("the trace lacks processes whose slices did not come: {fault}"),
        Err(_) => tracing::warn!("the trace lacks processes whose slices did not come within {MOST_TIME:?}"),
    }
    found
}

/// The slices of the members of the current attempt, in the coordinator.
#[derive(Default)]
pub(super) struct TimelineBook {
    attempt: u64,
    /// As JSON.
    sent: BTreeMap<(Role, u32), Vec<u8>>,
}

impl TimelineBook {
    /// Keeps the slices of a member of the current attempt.
    ///
    /// # Errors
    /// Internal: they cannot be written as JSON.
    pub(super) fn record(&mut self, request: &TimelineRequest) -> Result<(), Fault> {
        let TimelineRequest { member, timeline } = request;
        self.begin(member.attempt);
        let json = serde_json::to_vec(timeline)
            .map_err(|e| Fault::internal("the slices of a process cannot be written as JSON").because(e))?;
        let place = (member.role, member.rank);
        let others: usize = self.sent.iter().filter(|(at, _)| **at != place).map(|(_, json)| json.len()).sum();
        if others + json.len() <= MOST_KEPT {
            self.sent.insert(place, json);
        }
        Ok(())
    }

    /// The slices of the process after `after`, without the member that asks.
    pub(super) fn next(&mut self, request: NextTimelineRequest) -> NextTimelineReply {
        self.begin(request.member.attempt);
        let own = (request.member.role, request.member.rank);
        let mut left = self.sent.iter().filter(|(at, _)| **at != own && request.after.is_none_or(|after| **at > after));
        left.find_map(|(at, json)| Some((*at, serde_json::from_slice(json).ok()?)))
    }

    fn begin(&mut self, attempt: u64) {
        if self.attempt != attempt {
            *self = Self { attempt, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(number: u64, name: Option<BatchName>) -> TrackSlice {
        TrackSlice {
            began: Duration::from_nanos(1_700_000_000_000_000_000 + 1000 * number),
            took: Duration::from_nanos(700),
            what: Doing::Batch { lineage: Lineage { epoch: 1, split: 2, seq: number, row: 5 }, rows: 64, name },
        }
    }

    fn track(slices: Vec<TrackSlice>) -> Track {
        Track { stage: "parse".into(), replica: 3, slices, left_out: 4 }
    }

    fn member(role: Role, rank: u32, attempt: u64) -> MemberId {
        MemberId { role, rank, incarnation: 1, attempt }
    }

    #[test]
    fn slices_come_back_from_the_wire_with_the_coordinators_times() {
        let name = BatchName { epoch: 1, window: 0, index: Some(0) };
        let wait = |at: u64, what: &str| TrackSlice {
            took: Duration::from_nanos(100),
            what: Doing::Wait(what.into()),
            ..batch(at, None)
        };
        let whole = BatchName { index: None, ..name };
        let slices = vec![
            wait(0, "store"),
            batch(0, None),
            wait(1, "room below"),
            batch(1, Some(name)),
            wait(2, "store"),
            batch(2, Some(whole)),
            TrackSlice { what: Doing::Call { name: "pull".into(), items: 900 }, ..batch(3, None) },
        ];
        let mut offset = ClockOffset::default();
        offset.observe(Duration::from_secs(10), Duration::ZERO, Duration::from_secs(12));
        let sent = SentTimeline::of(&[track(slices.clone())], offset);
        let json = serde_json::to_string(&sent).unwrap();
        let back = ProcessTimeline::new((Role::Reader, 1), serde_json::from_str(&json).unwrap());
        let two_later = |slice: TrackSlice| TrackSlice { began: slice.began + Duration::from_secs(2), ..slice };
        let expected = track(slices.into_iter().map(two_later).collect());
        assert_eq!(back, ProcessTimeline { process: "reader 1".into(), tracks: vec![expected] });
    }

    #[test]
    fn however_much_a_process_did_it_sends_a_bounded_part_and_says_what_is_left_out() {
        let slices = || (0..4096).map(|number| batch(u64::MAX / 4000 + number, None)).collect();
        let tracks: Vec<Track> = (0..8).map(|_| track(slices())).collect();
        let sent = SentTimeline::of(&tracks, ClockOffset::default());
        assert!(serde_json::to_vec(&sent).unwrap().len() <= MOST_BYTES);
        for track in sent.tracks() {
            let numbers: Vec<u64> = track
                .slices
                .iter()
                .map(|slice| match slice.what {
                    Doing::Batch { ref lineage, .. } => lineage.seq - u64::MAX / 4000,
                    Doing::Wait(_) | Doing::Call { .. } => panic!("there was none"),
                })
                .collect();
            let kept = numbers.len() as u64;
            assert!(kept >= 64 && track.left_out == 4 + 4096 - kept, "{kept}, {}", track.left_out);
            assert_eq!((numbers[0], *numbers.last().unwrap()), (0, 4095));
            assert!(numbers.is_sorted());
        }
        assert_eq!(SentTimeline::of(&[], ClockOffset::default()).tracks(), []);
    }

    #[test]
    fn the_first_trainer_gets_the_slices_of_all_others_of_its_attempt() {
        let mut book = TimelineBook::default();
        let mut record = |member: MemberId| {
            let timeline =
                SentTimeline::of(&[track(vec![batch(u64::from(member.rank), None)])], ClockOffset::default());
            book.record(&TimelineRequest { member, timeline }).unwrap();
        };
        record(member(Role::Reader, 0, 6));
        [(Role::Reader, 0), (Role::Reader, 1), (Role::Trainer, 0), (Role::Trainer, 1)]
            .into_iter()
            .for_each(|(role, rank)| record(member(role, rank, 7)));
        let (mut after, mut found) = (None, Vec::new());
        while let Some((at, _)) = book.next(NextTimelineRequest { member: member(Role::Trainer, 0, 7), after }) {
            found.push(at);
            after = Some(at);
        }
        found.sort();
        let mut expected = vec![(Role::Reader, 0), (Role::Reader, 1), (Role::Trainer, 1)];
        expected.sort();
        assert_eq!(found, expected);
        assert!(
            book.next(NextTimelineRequest { member: member(Role::Trainer, 0, 8), after: None }).is_none(),
            "another attempt"
        );
    }
}
