//! `trace.json`: what each stage did when, in the Trace Event Format, which Perfetto and Chrome open.
//!
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::actors::{Doing, Lineage, Track, TrackSlice};

/// The process of the trace: the format asks for one.
const PROCESS: u32 = 1;

/// The trace of a run: a track for each replica of each stage, a slice for each batch, in it a slice for each wait, and arrows
/// that follow each batch from stage to stage.
pub(crate) fn trace(name: &str, tracks: &[Track]) -> Value {
    let mut events = vec![json!({ "ph": "M", "name": "process_name", "pid": PROCESS, "args": { "name": name } })];
    let begin = tracks.iter().flat_map(|track| &track.slices).map(|slice| slice.began).min().unwrap_or_default();
    // Microseconds since the first slice, so that a double holds them exactly.
    let at = |slice: &TrackSlice| slice.began.saturating_sub(begin).as_nanos() as f64 / 1e3;
    // By epoch, split, row and number of the batch: the tracks that worked on it, and when.
    let mut journeys = BTreeMap::<_, Vec<(usize, f64)>>::new();
    for (number, track) in tracks.iter().enumerate() {
        let Track { stage, replica, left_out, .. } = track;
        let thread = number + 1;
        let left_out = if *left_out > 0 { format!(" ({left_out} slices left out)") } else { String::new() };
        let label = format!("{stage} {replica}{left_out}");
        events.push(
            json!({ "ph": "M", "name": "thread_name", "pid": PROCESS, "tid": thread, "args": { "name": label } }),
        );
        let order = json!({ "sort_index": thread });
        events.push(json!({ "ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": thread, "args": order }));
        for slice in &track.slices {
            let (name, category, details) = match &slice.what {
                Doing::Batch { lineage: Lineage { epoch, split, seq, row }, rows } => {
                    let details = json!({ "epoch": epoch, "split": split, "row": row, "batch": seq, "rows": rows });
                    journeys.entry((*epoch, *split, *row, *seq)).or_default().push((thread, at(slice)));
                    (stage.as_str(), "batch", details)
                }
                Doing::Wait(what) => (what.as_str(), "wait", json!({})),
            };
            events.push(json!({
                "ph": "X", "name": name, "cat": category, "pid": PROCESS, "tid": thread, "ts": at(slice),
                "dur": slice.took.as_nanos() as f64 / 1e3, "args": details,
            }));
        }
    }
    for (id, journey) in journeys.values_mut().filter(|journey| journey.len() > 1).enumerate() {
        journey.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (step, (thread, at)) in journey.iter().enumerate() {
            let phase = if step == 0 {
                "s"
            } else if step + 1 == journey.len() {
                "f"
            } else {
                "t"
            };
            // An arrow ends at the slice around it.
            events.push(json!({
                "ph": phase, "name": "batch", "cat": "batch", "id": id, "pid": PROCESS, "tid": thread, "ts": at, "bp": "e",
            }));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_batch_has_a_slice_on_each_track_and_arrows_between_them() {
        let batch = |seq, began: u64| TrackSlice {
            began: Duration::from_millis(1_700_000_000_000 + began),
            took: Duration::from_millis(3),
            what: Doing::Batch { lineage: Lineage { seq, ..Lineage::default() }, rows: 7 },
        };
        let wait = TrackSlice { what: Doing::Wait("store".into()), took: Duration::from_millis(1), ..batch(0, 1) };
        let track = |stage: &str, slices, left_out| Track { stage: stage.into(), replica: 0, slices, left_out };
        let tracks = [
            track("read", vec![batch(0, 0), wait, batch(1, 5)], 0),
            track("parse", vec![batch(0, 4)], 9),
            track("sink", vec![batch(0, 8)], 0),
        ];
        let trace = trace("train", &tracks);
        let of = |phase: &str| -> Vec<(u64, f64)> {
            let events = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase);
            events.map(|event| (event["tid"].as_u64().unwrap(), event["ts"].as_f64().unwrap())).collect()
        };
        assert_eq!(of("X"), [(1, 0.0), (1, 1000.0), (1, 5000.0), (2, 4000.0), (3, 8000.0)]);
        assert_eq!((of("s"), of("t"), of("f")), (vec![(1, 0.0)], vec![(2, 4000.0)], vec![(3, 8000.0)]));
        let text = trace.to_string();
        assert!(text.contains("parse 0 (9 slices left out)") && text.contains("\"rows\":7"), "{text}");
    }
}
