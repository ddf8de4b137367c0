//! Which other process a stage waits for: the ps whose replies, the reader whose batches or the trainer whose pushes come last.

use std::collections::BTreeMap;

use forebay_actors::{ProcessWait, StageReport};

use crate::metrics::process_report::ProcessReport;

/// Fewer waits than this say little.
const FEW: u64 = 20;

/// A ps is slow if its replies take this many times as long as the replies of the others.
const SLOW: f64 = 2.0;

/// Replies that differ by less than this, in seconds, differ by chance.
const CHANCE: f64 = 1e-3;

/// Replies that take at most this many round trips of a small request are late because of the distance.
const DISTANCE: f64 = 2.5;

/// A push that waits this many times as long as a look-up waits for more than the distance to the ps.
const LONGER: f64 = 5.0;

/// A trainer is slow if the others take this many times as many rows in the same time of their own.
const FASTER: f64 = 2.0;

/// A reader is slow if trainers wait for it in this part of the time. Of two equally fast readers, each is awaited for half of the time.
const MOST: f64 = 0.7;

/// A stage of all processes as one.
fn merged(processes: &[&ProcessReport], stage: &str) -> StageReport {
    let mut all = StageReport::default();
    let stages = processes.iter().flat_map(|process| &process.report.stages).filter(|found| found.name == stage);
    stages.for_each(|found| all.merge(found));
    all
}

/// The ps whose replies take longest.
fn slowest(waits: &BTreeMap<String, ProcessWait>) -> Option<(&String, &ProcessWait)> {
    waits.iter().filter(|(_, wait)| wait.count >= FEW).max_by_key(|(_, wait)| wait.mean())
}

/// The ps whose replies take much longer than the replies of the others, and the share of the trainers' time in which look-ups wait because
/// of that.
pub(super) fn slow_ps(processes: &[&ProcessReport]) -> Option<(String, f64)> {
    let waits = merged(processes, "lookup").by_process;
    let (name, slow) = slowest(&waits)?;
    let others: Vec<f64> =
        waits.iter().filter(|(ps, _)| *ps != name).map(|(_, wait)| wait.mean().as_secs_f64()).collect();
    let (mean, others) = (slow.mean().as_secs_f64(), others.iter().sum::<f64>() / (others.len() as f64));
    let is_slow = mean > SLOW * others && mean - others > CHANCE;
    let trainers = processes.iter().filter(|process| process.stage("lookup").is_some());
    let time: f64 = trainers.map(|process| process.report.wall.as_secs_f64()).sum();
    let share = (mean - others) * slow.count as f64 / time.max(1e-3);
    is_slow.then(|| {
        (format!("{name} takes {:.1} ms to reply where the others take {:.1}", 1e3 * mean, 1e3 * others), share)
    })
}

/// Whether look-ups wait for the distance to the ps: their replies take about as long as the replies to small requests. `None` if that is
/// not known.
pub(super) fn ps_are_far(processes: &[&ProcessReport]) -> Option<bool> {
    let waits = merged(processes, "lookup").by_process;
    let (_, slow) = slowest(&waits).filter(|(_, wait)| !wait.round_trip.is_zero())?;
    Some(slow.mean().as_secs_f64() <= DISTANCE * slow.round_trip.as_secs_f64())
}

/// With `train.sync`, the trainer that the steps of all trainers wait for, how slow it is, and the share of the run that the others wait.
/// Its pushes wait least, because the ps answer when the pushes of all trainers are there. `None` if no trainer is slow, or pushes do not
/// wait for much longer than look-ups and than a round trip.
pub(super) fn slow_trainer<'a>(processes: &[&'a ProcessReport]) -> Option<(&'a ProcessReport, String, f64)> {
    let push = |process: &'a ProcessReport| Some((process, process.stage("push")?));
    let pushes = processes.iter().filter_map(|&process| push(process));
    let pushes: Vec<_> =
        pushes.map(|(process, push)| (process, push.wait_share("shards"), own_rate(process, push))).collect();
    let (waits, ..) = *pushes.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let (slow, _, rate) = *pushes.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    // A look-up that is under way together with the push before it has no round trip of its own.
    let round_trip = waits.stage("lookup").and_then(|lookup| lookup.by_process.values().map(|ps| ps.round_trip).max());
    let usual = round_trip.unwrap_or_default().as_secs_f64().max(mean_wait(waits, "lookup"));
    if mean_wait(waits, "push") <= LONGER * usual {
        return None;
    }
    let others: Vec<_> = pushes.iter().filter(|(process, ..)| process.process != slow.process).collect();
    let count = others.len().max(1) as f64;
    let waited = others.iter().map(|(_, waited, _)| waited).sum::<f64>() / count;
    let others = others.iter().map(|(.., rate)| rate).sum::<f64>() / count;
    let words = format!("{} does {rate:.0} rows/s where the others do {others:.0}", slow.process);
    (others > FASTER * rate).then_some((slow, words, waited))
}

/// Seconds that a stage waits for shards, each time.
fn mean_wait(process: &ProcessReport, name: &str) -> f64 {
    let wait = process.stage(name).and_then(|stage| stage.waits.get("shards"));
    wait.map_or(0.0, |wait| wait.total.as_secs_f64() / wait.count.max(1) as f64)
}

/// Rows per second of the time in which a trainer does not wait for the other trainers.
fn own_rate(process: &ProcessReport, push: &StageReport) -> f64 {
    let own = process.report.wall.as_secs_f64() * (1.0 - push.wait_share("shards"));
    push.rows_in as f64 / own.max(1e-3)
}

/// If trainers wait for less than one in this many batches of a reader, the reader stands still from time to time: a network at its limit
/// would delay most batches.
const SELDOM: u64 = 10;

/// Whether trainers seldom wait for a batch of this reader.
pub(super) fn is_seldom_awaited(processes: &[&ProcessReport], reader: &ProcessReport) -> bool {
    let waits = merged(processes, "receive").by_process;
    let times = waits.get(&reader.process).map_or(0, |wait| wait.count);
    times.saturating_mul(SELDOM) < reader.stage("ship").map_or(0, |ship| ship.items_in)
}

/// The reader that trainers wait for, if it is the same one most of the time and there are others; or
/// [`LOST_READERS`](crate::metrics::process_report::LOST_READERS).
pub(super) fn awaited_reader(processes: &[&ProcessReport]) -> Option<String> {
    let waits = merged(processes, "receive").by_process;
    let all: f64 = waits.values().map(|wait| wait.total.as_secs_f64()).sum();
    let (name, most) = waits.iter().max_by_key(|(_, wait)| wait.total)?;
    let ships = |process: &&&ProcessReport| process.report.stages.iter().any(|stage| stage.name == "ship");
    let others = processes.iter().filter(ships).any(|process| process.process != *name);
    (others && most.total.as_secs_f64() >= MOST * all).then(|| name.clone())
}
