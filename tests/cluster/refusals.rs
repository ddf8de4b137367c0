//! Processes that are refused or missing: a clear message, the right exit code, and the other processes go on.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use super::jobs::job;
use super::processes::{Ledger, Run, in_time};
use super::trust::{Trust, flags};

const ROWS: u64 = 4096;

fn refs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn wrong_processes_are_refused_and_the_run_goes_on() {
    let mut run = Run::local(&job(ROWS, &["placement.readers=1", "placement.ps=1"]));
    let ours = Trust::new(&run.folder().join("ours"), std::iter::empty());
    let theirs = Trust::new(&run.folder().join("theirs"), std::iter::empty());
    let (all, other) = (flags(&ours.files), flags(&theirs.files));
    let with = |more: [&'static str; 2]| [refs(&all), more.to_vec()].concat();
    run.start_with("ps 0", &refs(&all));
    run.until_said("ps 0", "listens");

    // A name, what is wrong, the flags that the process is started with, and what its message must contain.
    let (token, ca) = (&other[..2], &other[6..]);
    let (token, ca) = (refs(token), refs(ca));
    let strangers: [(&str, &str, Vec<&str>, &str); 8] = [
        ("reader 0", "token", [&refs(&all)[2..], &token].concat(), "the caller's token is not the one of this server"),
        (
            "reader 0",
            "none",
            refs(&all)[2..].to_vec(),
            "the server asks for a token, and the caller sent none: give token_file",
        ),
        ("reader 0", "run", with(["--run", "monday"]), "this is run `forebay`, and the caller belongs to run `monday`"),
        ("reader 0", "job", with(["--set", "train.staleness=3"]), "has another job than the coordinator"),
        ("trainer 1", "rank", refs(&all), "trainer 1 wants to join, but the job has 1 of this role"),
        ("ps 5", "rank", refs(&all), "ps 5 wants to join, but the job has 1 of this role"),
        (
            "reader 0",
            "ca",
            [&refs(&all)[..6], &ca].concat(),
            "its certificate is not trusted: tls_ca must name the authority",
        ),
        (
            "reader 0",
            "clear",
            refs(&all)[..2].to_vec(),
            "if it speaks TLS, name the authority of its certificate by tls_ca",
        ),
    ];
    for (process, stranger, flags, words) in strangers {
        let name = format!("{process}@{stranger}");
        run.start_with(&name, &flags);
        run.end_with(&name, 2, words);
    }

    run.start_with("trainer 0", &refs(&all));
    run.start_with("reader 0", &refs(&all));
    let logs = run.end_well(&["trainer 0", "ps 0", "reader 0"]);
    assert_eq!(Ledger::of(&logs[0]).rows, ROWS);
}

#[test]
fn a_server_that_others_reach_needs_a_token_and_tls() {
    let settings = job(ROWS, &["placement.readers=1", "placement.ps=1"]);
    let mut run = Run::local(&settings);
    let trust = Trust::new(&run.folder().join("trust"), std::iter::empty());
    let all = flags(&trust.files);
    for (name, flags, lacks) in [
        ("ps 0@open", &[][..], "a token and TLS are missing"),
        ("ps 0@token", &refs(&all)[..2], "TLS is missing"),
        ("ps 0@tls", &refs(&all)[2..], "a token is missing"),
    ] {
        run.start_with(name, &[&["--listen", "0.0.0.0:0"], flags].concat());
        run.end_with(name, 2, lacks);
        run.end_with(name, 2, "can be reached from other machines");
    }
}

/// The connection of another process may have the port of a coordinator that is started again.
#[test]
fn a_process_whose_address_is_taken_waits_for_it() {
    in_time(|_| {
        let mut run = Run::local(&job(ROWS, &["placement.ps=1"]));
        let other = TcpListener::bind(run.coordinator()).unwrap();
        run.start(&["ps 0"]);
        run.until_said("ps 0", "is another process there already?: Address already in use");
        drop(other);
        run.start(&["trainer 0"]);
        run.end_well(&["trainer 0", "ps 0"]);
        let _other = TcpListener::bind(run.coordinator()).unwrap();
        run.start(&["ps 0@late"]);
        run.end_with("ps 0@late", 2, "is another process there already?");
    });
}

#[test]
fn missing_members_are_named() {
    in_time(|_| {
        let placement = ["placement.readers=2", "placement.ps=2", "placement.timeout_seconds=4"];
        let mut run = Run::local(&job(ROWS, &placement));
        // There is no coordinator.
        run.start(&["reader 1@alone"]);
        run.end_with("reader 1@alone", 3, "gave up waiting for the coordinator at 127.0.0.1:");
        run.start(&["ps 0", "trainer 0"]);
        for name in ["ps 0", "trainer 0"] {
            run.until_said(name, "waiting for ps 1, any reader");
            run.end_with(name, 3, "ps 1, any reader did not join within 4 s (placement.timeout_seconds)");
        }
    });
}

#[test]
fn late_members_are_waited_for() {
    let mut run = Run::local(&job(ROWS, &["placement.readers=1", "placement.ps=2"]));
    run.start(&["trainer 0"]);
    run.until_said("trainer 0", "waiting for the coordinator at 127.0.0.1:");
    run.start(&["ps 0"]);
    run.until_said("ps 0", "waiting for ps 1, any reader");
    run.start(&["reader 0"]);
    run.until_said("reader 0", "waiting for ps 1");
    run.start(&["ps 1"]);
    let logs = run.end_well(&["trainer 0", "ps 0", "ps 1", "reader 0"]);
    assert_eq!(Ledger::of(&logs[0]).rows, ROWS);
}

#[test]
fn a_job_of_several_processes_is_not_trained_in_one() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("train").args(job(ROWS, &["placement.readers=1", "placement.ps=1"]).iter().flat_map(|s| ["--set", s]));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("start them on this machine with `forebay launch`"), "{said}");
}
