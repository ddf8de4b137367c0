//! `trace.json`: the work of the stages and services of each process over time, in the Trace Event Format, which Perfetto and Chrome open.
//!
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::actors::{BatchName, Doing, Lineage, Track, TrackSlice};
use crate::pipelines::cluster::ProcessTimeline;

/// The batch or the rows that an arrow follows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Followed {
    /// A batch by its id, which is the same in all processes.
    Batch { epoch: u32, window: u64, index: u32 },
    /// Rows that are not cut into batches yet, by their process and their lineage there.
    Rows { process: usize, epoch: u32, split: u32, row: u64, seq: u64 },
}

/// The work of a replica on a batch or rows that an arrow follows.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Hop {
    /// Trainers work on what readers sent.
    after_readers: bool,
    process: usize,
    thread: usize,
    /// Begin and end in microseconds.
    began: f64,
    ended: f64,
}

/// The trace of a run. Each process has a track for each replica of each stage and for each service. A track has a slice for each batch and
/// each call, and within it a slice for each wait. Arrows follow each batch from stage to stage and from process to process.
pub(crate) fn trace(processes: &[ProcessTimeline]) -> Value {
    let slices = processes.iter().flat_map(|process| &process.tracks).flat_map(|track| &track.slices);
    let begin = slices.map(|slice| slice.began).min().unwrap_or_default();
    let mut events = Vec::new();
    let mut journeys = BTreeMap::<_, Vec<Hop>>::new();
    for (at, ProcessTimeline { process, tracks }) in processes.iter().enumerate() {
        let number = at + 1;
        events.push(json!({ "ph": "M", "name": "process_name", "pid": number, "args": { "name": process } }));
        events
            .push(json!({ "ph": "M", "name": "process_sort_index", "pid": number, "args": { "sort_index": number } }));
        let after_readers = !tracks.iter().any(|track| track.stage == "ship");
        for (thread, track) in tracks.iter().enumerate() {
            let thread = thread + 1;
            track_events(&mut events, number, thread, track, begin);
            for slice in &track.slices {
                let Doing::Batch { lineage, name, .. } = &slice.what else { continue };
                let (began, ended) = micros(slice, begin);
                let hop = Hop { after_readers, process: number, thread, began, ended };
                journeys.entry(followed(number, lineage, *name)).or_default().push(hop);
            }
        }
    }
    let arrows = journeys.into_values().map(points).filter(|points| points.len() > 1);
    events.extend(arrows.enumerate().flat_map(|(id, points)| arrow(id, points)));
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

/// Begin and end since `begin`: a double holds these microseconds exactly.
fn micros(slice: &TrackSlice, begin: Duration) -> (f64, f64) {
    let began = slice.began.saturating_sub(begin);
    (began.as_nanos() as f64 / 1e3, (began + slice.took).as_nanos() as f64 / 1e3)
}

fn followed(process: usize, lineage: &Lineage, name: Option<BatchName>) -> Followed {
    let Lineage { epoch, split, seq, row } = *lineage;
    match name {
        Some(BatchName { epoch, window, index: Some(index) }) => Followed::Batch { epoch, window, index },
        _ => Followed::Rows { process, epoch, split, row, seq },
    }
}

/// The name of a track, and its slices.
fn track_events(events: &mut Vec<Value>, process: usize, thread: usize, track: &Track, begin: Duration) {
    let Track { stage, replica, left_out, slices } = track;
    let left_out = if *left_out > 0 { format!(" ({left_out} slices left out)") } else { String::new() };
    let label = json!({ "name": format!("{stage} {replica}{left_out}") });
    events.push(json!({ "ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": label }));
    let order = json!({ "sort_index": thread });
    events.push(json!({ "ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": order }));
    for slice in slices {
        let (name, category, details) = match &slice.what {
            Doing::Batch { lineage: Lineage { epoch, split, seq, row }, rows, name } => {
                let (window, index) = (name.map(|name| name.window), name.and_then(|name| name.index));
                let details = json!({
                    "epoch": epoch, "window": window, "index": index, "split": split, "row": row, "batch": seq, "rows": rows,
                });
                (stage.as_str(), "batch", details)
            }
            Doing::Wait(what) => (what.as_str(), "wait", json!({})),
            Doing::Call { name, items } => (name.as_str(), "call", json!({ "items": items })),
        };
        let (began, _) = micros(slice, begin);
        events.push(json!({
            "ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, "ts": began,
            "dur": slice.took.as_nanos() as f64 / 1e3, "args": details,
        }));
    }
}

/// The points of an arrow, in the order of the graph: process, thread and time. A point lies within its slice, and is not earlier than the
/// point before it, although the slice of a source begins when the source starts to wait for the batch. A hop that is earlier than its
/// predecessor, because the clocks of machines differ, is left out.
fn points(mut hops: Vec<Hop>) -> Vec<(usize, usize, f64)> {
    hops.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let mut last = 0.0_f64;
    let points = hops.into_iter().filter_map(|Hop { process, thread, began, ended, .. }| {
        let at = began.max(last);
        (at <= ended).then(|| {
            last = at;
            (process, thread, at)
        })
    });
    points.collect()
}

fn arrow(id: usize, points: Vec<(usize, usize, f64)>) -> impl Iterator<Item = Value> {
    let last = points.len() - 1;
    points.into_iter().enumerate().map(move |(step, (process, thread, at))| {
        let phase = match step {
            0 => "s",
            step if step == last => "f",
            _ => "t",
        };
        // An arrow ends at the slice that encloses its last point.
        json!({
            "ph": phase, "name": "batch", "cat": "batch", "id": id, "pid": process, "tid": thread, "ts": at, "bp": "e",
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(seq: u64, name: Option<BatchName>, began: u64, took: u64) -> TrackSlice {
        TrackSlice {
            began: Duration::from_millis(1_700_000_000_000 + began),
            took: Duration::from_millis(took),
            what: Doing::Batch { lineage: Lineage { seq, ..Lineage::default() }, rows: 7, name },
        }
    }

    fn track(stage: &str, slices: Vec<TrackSlice>, left_out: u64) -> Track {
        Track { stage: stage.into(), replica: 0, slices, left_out }
    }

    fn process(name: &str, tracks: Vec<Track>) -> ProcessTimeline {
        ProcessTimeline { process: name.into(), tracks }
    }

    /// Process, thread and time of the events of a phase.
    fn of(trace: &Value, phase: &str) -> Vec<(u64, u64, f64)> {
        let number = |event: &Value, field: &str| event[field].as_u64().unwrap();
        let events = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase);
        events.map(|event| (number(event, "pid"), number(event, "tid"), event["ts"].as_f64().unwrap())).collect()
    }

    #[test]
    fn a_batch_has_a_slice_on_each_track_and_arrows_between_them() {
        let wait = TrackSlice { what: Doing::Wait("store".into()), ..slice(0, None, 1, 1) };
        let tracks = vec![
            track("read", vec![slice(0, None, 0, 3), wait, slice(1, None, 5, 3)], 0),
            track("parse", vec![slice(0, None, 4, 3)], 9),
            track("sink", vec![slice(0, None, 8, 3)], 0),
        ];
        let trace = trace(&[process("train", tracks)]);
        let slices = [(1, 1, 0.0), (1, 1, 1000.0), (1, 1, 5000.0), (1, 2, 4000.0), (1, 3, 8000.0)];
        assert_eq!(of(&trace, "X"), slices);
        let arrows = (of(&trace, "s"), of(&trace, "t"), of(&trace, "f"));
        assert_eq!(arrows, (vec![(1, 1, 0.0)], vec![(1, 2, 4000.0)], vec![(1, 3, 8000.0)]));
        let text = trace.to_string();
        assert!(text.contains("parse 0 (9 slices left out)") && text.contains("\"rows\":7"), "{text}");
    }

    #[test]
    fn an_arrow_follows_a_batch_from_the_reader_to_the_trainer_that_waited_for_it() {
        let name = Some(BatchName { epoch: 0, window: 3, index: Some(1) });
        // The trainer is listed first, counts its batches itself, and began to wait before the reader sent.
        let trainer =
            vec![track("receive", vec![slice(0, name, 1, 9)], 0), track("train", vec![slice(0, name, 10, 5)], 0)];
        let reader = vec![track("batch", vec![slice(7, None, 0, 4)], 0), track("ship", vec![slice(8, name, 5, 2)], 0)];
        let trace = trace(&[process("trainer 0", trainer), process("reader 0", reader)]);
        let arrows = (of(&trace, "s"), of(&trace, "t"), of(&trace, "f"));
        assert_eq!(arrows, (vec![(2, 2, 5000.0)], vec![(1, 1, 5000.0)], vec![(1, 2, 10_000.0)]));
    }

    #[test]
    fn a_slice_that_ended_before_the_one_that_it_follows_has_no_arrow() {
        let name = Some(BatchName { epoch: 0, window: 3, index: Some(1) });
        let trainer =
            vec![track("receive", vec![slice(0, name, 0, 1)], 0), track("train", vec![slice(0, name, 9, 5)], 0)];
        let trace = trace(&[
            process("reader 0", vec![track("ship", vec![slice(8, name, 5, 2)], 0)]),
            process("trainer 0", trainer),
        ]);
        assert_eq!(
            (of(&trace, "s"), of(&trace, "t"), of(&trace, "f")),
            (vec![(1, 1, 5000.0)], vec![], vec![(2, 2, 9000.0)])
        );
    }
}
