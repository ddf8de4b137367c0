//! `--dashboard`: a browser follows runs while they go on, end, are killed and start again; a real Prometheus reads their metrics.
//!
//! Needs Chromium and Prometheus (`make setup-chromium setup-prometheus`).
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

#[path = "../common/address.rs"]
mod address;
mod browser;
#[path = "../common/mod.rs"]
mod common;
mod many;
mod prometheus;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use address::free_address;
use browser::Page;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LONG: Duration = common::DEADLINE;

/// A run with a dashboard. Dropping it kills it.
struct Run {
    child: Child,
    address: SocketAddr,
}

impl Run {
    /// A run of `command` over `rows` for as long as it is left alone.
    fn start(command: &str, rows: &Path, address: SocketAddr, more: &[&str]) -> Self {
        let mut arguments = vec![command.to_owned(), "--dashboard".into(), address.to_string()];
        for setting in ["data.epochs=1000000", "data.shuffle_rows=0", "train.batch_rows=256", "model.hidden=[8]"]
            .iter()
            .chain(more)
        {
            arguments.extend(["--set".into(), (*setting).to_owned()]);
        }
        arguments.extend(["--set".into(), format!("data.train={}", rows.display())]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command: Command = common::forebay(&arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let run = Self { child, address };
        run.until_served();
        run
    }

    fn until_served(&self) {
        let begun = Instant::now();
        while !matches!(get(self.address, "/run.json"), Some((200, ..))) {
            assert!(begun.elapsed() < LONG, "nothing is served at {}", self.address);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status, headers and body of an answer; `None` if no server listens at the address.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String, String)> {
    send(address, "GET", path)
}

fn send(address: SocketAddr, method: &str, path: &str) -> Option<(u16, String, String)> {
    send_to(address, &address.to_string(), method, path)
}

fn send_to(address: SocketAddr, host: &str, method: &str, path: &str) -> Option<(u16, String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, head.to_lowercase(), body.to_owned()))
}

fn run_json(address: SocketAddr) -> Value {
    let (status, _, body) = get(address, "/run.json").unwrap();
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn rows(dir: &Path) -> std::path::PathBuf {
    common::parquet(dir, 0, 20_000)
}

const NOTICE: &str = "document.getElementById('notice').textContent";

/// Whether the page has seen how its run ended. The end waits a second for it, and a page that stood still for longer has not.
fn has_seen_the_end(page: &mut Page) -> bool {
    let ended = format!("{NOTICE} === 'The run has ended.'");
    page.until(&format!("{ended} || {NOTICE}.startsWith('This page cannot reach the run')"));
    page.value(&ended) == true
}

#[test]
fn a_page_follows_a_run_its_end_its_death_and_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, address) = (rows(dir.path()), free_address());
    let eval = format!("data.eval={}", rows.display());
    let start = || Run::start("train", &rows, address, &[&eval]);
    let mut run = start();
    let mut page = Page::open(&run.url(), &dir.path().join("profile"), (1200, 800));
    page.until("Number(document.body.dataset.drawn) > 2");
    assert_eq!(
        page.value("[...document.querySelectorAll('#graph b')].map((name) => name.textContent).join()"),
        "read,parse,batch,lookup,train,push"
    );
    let shown = "Number(document.querySelector('#figures dd').textContent.replaceAll(',', ''))";
    // Before the first batch the first figure is another one.
    page.until(&format!("{shown} > 0"));
    let before = page.value(shown).as_f64().unwrap();
    page.until(&format!("{shown} > {before}"));
    assert!(page.value("document.querySelectorAll('canvas').length").as_u64().unwrap() >= 10);
    assert_eq!(page.value(NOTICE), "");

    // Its end, with the evaluation that follows it.
    let ends = (0..20).any(|attempt| {
        if attempt > 0 {
            run = start();
            page.until(&format!("{NOTICE} === '' && Number(document.body.dataset.drawn) > 1"));
        }
        run.signal(Signal::TERM);
        assert_eq!(run.ended(), Some(5));
        has_seen_the_end(&mut page)
    });
    assert!(ends, "the page has seen no run end");
    page.until("document.getElementById('verdict').textContent.startsWith('drained')");
    page.until("!document.getElementById('evaluation').hidden");

    // Another run at the same address, which is killed.
    let mut run = Run::start("train", &rows, address, &["model.kind=lr"]);
    page.until("document.title.includes('lr on') && Number(document.body.dataset.drawn) > 1");
    assert_eq!(page.value(NOTICE), "");
    run.signal(Signal::KILL);
    assert_eq!(run.ended(), None);
    page.until(&format!("{NOTICE}.startsWith('This page cannot reach the run')"));
    let _run = Run::start("train", &rows, address, &["model.kind=fm"]);
    page.until("document.title.includes('fm on')");
}

#[test]
fn the_page_of_a_launch_shows_all_its_processes_and_outlives_its_trainer() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, address) = (rows(dir.path()), free_address());
    let placement = ["placement.readers=2", "placement.ps=2", "placement.lease_rows=1024"];
    let run = Run::start("launch", &rows, address, &placement);
    let mut page = Page::open(&run.url(), &dir.path().join("profile"), (420, 800));
    let processes = "[...document.querySelectorAll('#process-table tbody td:first-child')].map((name) => name.textContent).sort().join()";
    page.until(&format!("{processes} === 'ps 0,ps 1,reader 0,reader 1,trainer 0'"));
    assert_eq!(page.value("document.querySelectorAll('#graph b')[0].textContent"), "read × 2");
    assert_eq!(page.value("document.documentElement.scrollWidth <= innerWidth"), true, "it is wider than a phone");

    let trainer =
        Command::new("pgrep").args(["-P", &run.child.id().to_string(), "-f", "role trainer"]).output().unwrap();
    let trainer: i32 = String::from_utf8(trainer.stdout).unwrap().trim().parse().expect("one trainer");
    kill_process(Pid::from_raw(trainer).unwrap(), Signal::KILL).unwrap();
    page.until(
        "performance.getEntriesByType('navigation')[0].type === 'reload' && Number(document.body.dataset.drawn) > 1",
    );
    page.until(&format!("{processes} === 'ps 0,ps 1,reader 0,reader 1,trainer 0'"));
}

#[test]
fn a_page_says_why_its_run_failed() {
    let says = (0..20).any(|_| {
        let dir = tempfile::tempdir().unwrap();
        let (rows, address) = (rows(dir.path()), free_address());
        // The rows of a later epoch are gone.
        let mut run = Run::start("train", &rows, address, &["data.read_ahead=64KiB"]);
        let mut page = Page::open(&run.url(), &dir.path().join("profile"), (1200, 800));
        page.until("Number(document.body.dataset.drawn) > 1");
        for file in std::fs::read_dir(&rows).unwrap() {
            std::fs::write(file.unwrap().path(), "no rows").unwrap();
        }
        // A file that changes while it is read is a fault of the outside, one that is no Parquet is the user's.
        assert!(matches!(run.ended(), Some(2 | 3)));
        if !has_seen_the_end(&mut page) {
            return false;
        }
        page.until("document.getElementById('verdict').textContent.startsWith('failed')");
        page.until("document.getElementById('verdict').textContent.includes('.parquet')");
        true
    });
    assert!(says, "the page has seen no run end");
}

#[test]
fn the_page_draws_itself_again_in_the_colours_of_another_theme() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, address) = (rows(dir.path()), free_address());
    let run = Run::start("train", &rows, address, &[]);
    let mut page = Page::open(&run.url(), &dir.path().join("profile"), (1200, 800));
    for theme in ["light", "dark", "light"] {
        page.theme(theme);
        let ground = if theme == "dark" { "rgb(20, 24, 29)" } else { "rgb(255, 255, 255)" };
        page.until(&format!("getComputedStyle(document.body).backgroundColor === '{ground}'"));
        page.until("Number(document.body.dataset.drawn) > 1");
    }
}

#[test]
fn in_json_every_line_is_json_from_the_address_of_the_page_to_the_end_of_a_drained_run() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(dir.path());
    let data = format!("data.train={}", rows.display());
    let settings = ["--set", &data, "--set", "data.epochs=1000000", "--set", "model.kind=lr"];
    for command in ["train", "launch"] {
        // `launch` passes the address on to its trainer.
        let arguments = [&[command, "--log-format", "json", "--dashboard", "127.0.0.1:0"], &settings[..]].concat();
        let mut run = common::Background::start(&mut common::forebay(&arguments));
        run.wait_for("dashboard at http://127.0.0.1:", 1);
        run.signal("-TERM");
        let output = common::exits(5, run.wait(), &["stopping: "]);
        for line in output.lines() {
            assert!(
                serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()),
                "{command}: no JSON: {line}"
            );
        }
    }
}

#[test]
fn an_address_that_others_reach_needs_a_token_and_tls_and_one_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(dir.path());
    let refused = |command: &str, listen: &str| {
        let data = format!("data.train={}", rows.display());
        let output = common::forebay(&[command, "--dashboard", listen, "--set", &data]).output().unwrap();
        common::exits(2, common::code_and_output(&output), &[])
    };
    assert!(refused("train", "0.0.0.0:0").contains("a token and TLS are missing"));
    assert!(refused("launch", "0.0.0.0:9600").contains("ssh -L 9600:127.0.0.1:9600"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for command in ["train", "launch"] {
        assert!(refused(command, &address).contains(&format!("cannot listen at {address}")));
    }
}

/// A web page can make a name of its own lead to 127.0.0.1, and then its scripts read what is served there under this name.
#[test]
fn a_request_to_the_name_of_another_machine_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::start("train", &rows(dir.path()), free_address(), &[]);
    for path in ["/", "/run.json", "/metrics"] {
        let (status, _, body) = send_to(run.address, "evil.example:9600", "GET", path).unwrap();
        assert!(status == 421 && body.contains("`evil.example:9600`") && body.contains("localhost"), "{body}");
        let (status, ..) = send_to(run.address, "localhost:1234", "GET", path).unwrap();
        assert_eq!(status, 200, "by a tunnel: {path}");
    }
}

#[test]
fn other_paths_and_methods_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::start("train", &rows(dir.path()), free_address(), &[]);
    assert_eq!(get(run.address, "/healthz").unwrap().0, 200);
    let (status, _, body) = get(run.address, "/nosuch").unwrap();
    assert!(status == 404 && body.contains("/run.json"), "{body}");
    let (status, head, body) = send(run.address, "POST", "/metrics").unwrap();
    assert!(status == 405 && head.contains("allow: get") && body.contains("GET"), "{head} {body}");
    // With a body, it was called too long.
    let mut socket = std::net::TcpStream::connect(run.address).unwrap();
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    std::io::Write::write_all(&mut socket, post.as_bytes()).unwrap();
    let said = std::io::read_to_string(socket).unwrap();
    assert!(said.starts_with("HTTP/1.1 405 "), "{said}");
    for method in ["POST", "DELETE"] {
        let (status, head, _) = send(run.address, method, "/healthz").unwrap();
        assert!(status == 405 && head.contains("allow: get, head"), "{head}");
    }
    for path in ["/", "/run.json", "/metrics", "/healthz"] {
        let (status, head, body) = send(run.address, "HEAD", path).unwrap();
        assert!(status == 200 && body.is_empty(), "{path}: {head} {body}");
    }
    assert!(run_json(run.address)["progress"]["rows"].as_u64().is_some());
}
