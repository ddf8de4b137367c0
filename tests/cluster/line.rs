//! Long lines between the hosts: 25 ms each way, 1 Gbit/s.

use std::sync::Arc;
use std::time::Instant;

use super::hosts::{Hosts, Line};
use super::jobs::{job, one_process};
use super::processes::{Ledger, Run};

const LONG_LINE: Line = Line { rate_mbit: Some(1000), delay_ms: Some(25) };

const HOSTS: [&str; 5] = ["ps0", "ps1", "trainer0", "reader0", "reader1"];

fn hosts() -> Arc<Hosts> {
    let hosts = Arc::new(Hosts::new(&HOSTS));
    HOSTS.iter().for_each(|name| hosts.line(name, LONG_LINE));
    hosts
}

#[test]
fn the_model_does_not_depend_on_the_distance() {
    const ROWS: u64 = 6000;
    let settings = job(ROWS, &["placement.readers=2", "placement.ps=2", "placement.lease_rows=1024"]);
    let mut run = Run::on_hosts(&hosts(), &HOSTS, "ps0", &settings);
    let all = ["trainer 0", "ps 0", "ps 1", "reader 0", "reader 1"];
    run.start(&all);
    let logs = run.end_well(&all);
    let ledger = Ledger::of(&logs[0]);
    assert_eq!((ledger.rows, ledger.again), (ROWS, 0), "{}", logs[0]);
    assert_eq!(run.model().difference(&one_process(&settings).0), None);
}

/// Bytes that a host has sent, headers of all layers included.
fn sent(run: &Run, host: &str) -> u64 {
    let output = run.hosts()[host].command("cat").arg("/proc/net/dev").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let card = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap_or_else(|| panic!("{text}"));
    card.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Dense features of a row whose bytes cost little to make and to use, so that the line is what bounds the run.
const WIDTH: usize = 520;

/// Waits until the next window is done, and says when that was, how many rows are done, and how many bytes reader 0 has sent.
/// Rows are counted by the window: between two such moments, and only there, they are those of that time.
fn next_window(run: &mut Run) -> (Instant, u64, u64) {
    let before = run.until_news("the run is under way", |news| news.account.rows > 200_000).account.rows;
    let news = run.until_news("a window is done", |news| news.account.rows > before);
    (Instant::now(), news.account.rows, sent(run, "reader0"))
}

/// A reader and a trainer at both ends of a long line: how much of it they use. A measurement, nothing is asserted of it.
#[test]
#[ignore = "a measurement: run it alone, on a quiet machine, with --nocapture"]
fn how_much_of_a_long_line_is_used() {
    let wide: Vec<String> = (0..WIDTH).map(|i| format!("{{column=\"I{}\",transform=\"none\"}}", i % 13 + 1)).collect();
    let wide = format!("columns.dense=[{}]", wide.join(","));
    let usual = [
        &wide,
        "columns.slots=[\"C1\"]",
        "data.epochs=1000",
        "data.shuffle_rows=0",
        "data.read_rows=2048",
        "model.kind=lr",
        "train.batch_rows=2048",
        "train.staleness=8",
        "placement.readers=1",
        "placement.lease_rows=2048",
    ];
    // The most that Linux lets a connection have where nobody has set it up for long lines.
    const STOCK: [u32; 2] = [6 << 20, 4 << 20];
    for (buffers, name) in
        [([64 << 20; 2], "socket buffers of 64 MiB"), (STOCK, "socket buffers as they are by default")]
    {
        for more in [&[][..], &["placement.streams=2"], &["placement.streams=4"]] {
            let hosts = hosts();
            HOSTS.iter().for_each(|host| hosts.socket_buffers(host, buffers));
            let mut run = Run::on_hosts(&hosts, &HOSTS, "trainer0", &job(131_072, &[&usual[..], more].concat()));
            run.start(&["trainer 0", "reader 0"]);
            let first = next_window(&mut run);
            run.until("the time is over", |_| (first.0.elapsed().as_secs() >= 10).then_some(()));
            let last = next_window(&mut run);
            let seconds = (last.0 - first.0).as_secs_f64();
            let (rows, bytes) = (last.1 - first.1, last.2 - first.2);
            // Label, dense values, one place; keys are so few that they are left out.
            let payload = rows * (WIDTH as u64 + 2) * 4;
            let share = |bytes: u64| bytes as f64 * 8.0 / seconds / (LONG_LINE.rate_mbit.unwrap() as f64 * 1e6);
            println!(
                "{name}, {more:?}: {:.0} rows/s, {:.1} MB/s of batches, {:.3} of the line (with all headers {:.3})",
                rows as f64 / seconds,
                payload as f64 / seconds / 1e6,
                share(payload),
                share(bytes)
            );
            run.kill("reader 0");
            run.kill("trainer 0");
        }
    }
}
