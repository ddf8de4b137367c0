//! Hosts far apart: 25 ms in each direction, 1 Gbit/s.

use std::sync::Arc;
use std::time::Instant;

use super::hosts::{Hosts, Line};
use super::jobs::{job, one_process};
use super::processes::{Ledger, Run, in_time};

pub(super) const LONG_LINE: Line = Line { rate_mbit: Some(1000), delay_ms: Some(25) };

const HOSTS: [&str; 5] = ["ps0", "ps1", "trainer0", "reader0", "reader1"];

pub(super) fn hosts() -> Arc<Hosts> {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    HOSTS.iter().for_each(|name| hosts.line(name, LONG_LINE));
    hosts
}

#[test]
fn the_model_does_not_depend_on_the_round_trip() {
    in_time(|_| {
        const ROWS: u64 = 6000;
        let settings = job(ROWS, &["placement.readers=2", "placement.ps=2", "placement.lease_rows=1024"]);
        let mut run = Run::on_hosts(&hosts(), &HOSTS, "ps0", &settings);
        let all = ["trainer 0", "ps 0", "ps 1", "reader 0", "reader 1"];
        run.start(&all);
        let logs = run.end_well(&all);
        let ledger = Ledger::of(&logs[0]);
        assert_eq!((ledger.rows, ledger.again), (ROWS, 0), "{}", logs[0]);
        for log in &logs[3..] {
            let streams =
                log.lines().find_map(|line| line.strip_suffix(" streams")?.rsplit(' ').next()?.parse::<u32>().ok());
            assert!(streams.is_some_and(|streams| (4..=8).contains(&streams)), "50 ms ask for several: {log}");
        }
        assert!(logs[0].contains("away: look-ahead of 8 batches"), "{}", logs[0]);
        assert!(logs[0].contains("looked up to 8 batches ahead: pulled "), "{}", logs[0]);
        assert_eq!(run.model().difference(&one_process(&settings).0), None);
    });
}

/// Bytes that a host has sent, with the headers of all layers.
fn sent(run: &Run, host: &str) -> u64 {
    let output = run.hosts()[host].command("cat").arg("/proc/net/dev").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let card = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap_or_else(|| panic!("{text}"));
    card.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Dense features of a row: cheap to make and to compute on, so that the line is the bottleneck.
const WIDTH: usize = 520;

/// Settings for rows of that many dense features, with one slot.
fn wide(rows: u64, more: &[&str]) -> Vec<String> {
    // Two features of one column must differ in an option.
    let feature = |i| format!("{{column=\"I{}\",transform=\"none\",fill={i}}}", i % 13 + 1);
    let dense: Vec<String> = (0..WIDTH).map(feature).collect();
    let dense = format!("columns.dense=[{}]", dense.join(","));
    let usual = [&dense, "columns.slots=[\"C1\"]", "data.epochs=1000", "model.kind=lr", "placement.readers=1"];
    job(rows, &[&usual, more].concat())
}

/// Bytes of `rows` rows: label, dense values, one place; the few keys are not counted.
fn payload(rows: u64) -> u64 {
    rows * (WIDTH as u64 + 2) * 4
}

/// The bytes in flight stay within the channel's credits, however much HTTP/2 and the kernel would buffer.
#[test]
fn bytes_in_flight_stay_within_the_credits_of_the_job() {
    const MIB: u64 = 1 << 20;
    const BATCH: u64 = 32;
    let hosts = Arc::new(Hosts::new(&HOSTS));
    for streams in ["placement.streams=1", "placement.streams=3"] {
        // Without look-ahead, because a machine under load makes "auto" take more batches out of the queue.
        let more =
            ["train.batch_rows=32", "train.look_ahead=0", "placement.ps=2", "placement.lease_rows=1024", streams];
        let more = [&more[..], &["placement.in_flight=10000", "placement.in_flight_bytes=1MiB"]].concat();
        let mut run = Run::on_hosts(&hosts, &HOSTS, "ps0", &wide(20_480, &more));
        let before = sent(&run, "reader0");
        run.start(&["ps 0", "ps 1", "trainer 0", "reader 0"]);
        run.until_windows(2);
        // From here on no look-up succeeds.
        run.hold("ps 1");
        let look = |run: &mut Run| {
            let done = run.until_status("the coordinator answers", |_| true).counts.trained;
            (sent(run, "reader0") - before, done)
        };
        // Reports of windows that are done may still be under way, and beats go on: the reader is at rest when it has sent less than a
        // batch for a second.
        let mut since = (look(&mut run), Instant::now());
        let (sent, done) = run.until("the reader is at rest", |run| {
            let now = look(run);
            if now.1 != since.0.1 || now.0 >= since.0.0 + payload(BATCH) {
                since = (now, Instant::now());
            }
            (since.1.elapsed().as_secs() >= 1).then_some(now)
        });
        let least = payload(done) + MIB * 9 / 10;
        // Allowed beyond the credits: a window that is not done, some batches in the trainer's stages, and headers.
        let most = (payload(done + 1024 + 10 * BATCH) + MIB) * 21 / 20;
        assert!((least..most).contains(&sent), "{streams}: {sent} bytes, {done} rows done, expected {least} to {most}");
        ["ps 0", "trainer 0", "reader 0"].iter().for_each(|name| run.kill(name));
    }
}

/// Waits until the next window is done. Returns the time, the rows done and the bytes that reader 0 has sent.
/// Rows are counted when their window is done, so only such moments can be compared.
fn next_window(run: &mut Run) -> (Instant, u64, u64) {
    let before = run.until_status("the run is under way", |status| status.counts.trained > 200_000).counts.trained;
    let status = run.until_status("a window is done", |status| status.counts.trained > before);
    (Instant::now(), status.counts.trained, sent(run, "reader0"))
}

/// Measures how much of a long line a reader and a trainer use. Asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn how_much_of_a_long_line_is_used() {
    let usual = [
        "data.shuffle_rows=0",
        "data.read_rows=2048",
        "train.batch_rows=2048",
        "train.staleness=8",
        "placement.lease_rows=2048",
    ];
    // Linux's default limits on the buffers of a connection.
    const STOCK: [u32; 2] = [6 << 20, 4 << 20];
    for (buffers, name) in
        [([64 << 20; 2], "socket buffers of 64 MiB"), (STOCK, "socket buffers as they are by default")]
    {
        for more in [&[][..], &["placement.streams=1"], &["placement.streams=2"], &["placement.streams=4"]] {
            let hosts = hosts();
            HOSTS.iter().for_each(|host| hosts.socket_buffers(host, buffers));
            let mut run = Run::on_hosts(&hosts, &HOSTS, "trainer0", &wide(131_072, &[&usual[..], more].concat()));
            run.start(&["trainer 0", "reader 0"]);
            let first = next_window(&mut run);
            run.until("the time is over", |_| (first.0.elapsed().as_secs() >= 10).then_some(()));
            let last = next_window(&mut run);
            let seconds = (last.0 - first.0).as_secs_f64();
            let (rows, bytes) = (last.1 - first.1, last.2 - first.2);
            let share = |bytes: u64| bytes as f64 * 8.0 / seconds / (LONG_LINE.rate_mbit.unwrap() as f64 * 1e6);
            println!(
                "{name}, {more:?}: {:.0} rows/s, {:.1} MB/s of batches, {:.3} of the line (with all headers {:.3})",
                rows as f64 / seconds,
                payload(rows) as f64 / seconds / 1e6,
                share(payload(rows)),
                share(bytes)
            );
            run.kill("reader 0");
            run.kill("trainer 0");
        }
    }
}
