//! `--spans N`: a receiver of OTLP gets the spans of a run, of one process and of several.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../common/mod.rs"]
mod common;
mod receiver;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use opentelemetry_proto::tonic::trace::v1::Span;
use receiver::{Received, Receiver, number, text};

/// Runs the program with spans sent to `endpoint`. Returns what it wrote to both outputs.
fn run(command: &str, dir: &Path, endpoint: &str, flags: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let data = dir.join("parquet-0");
    if !data.exists() {
        common::parquet(dir, 0, 20_000);
    }
    let sets =
        [&format!("data.train={}", data.display()), "model.kind=lr", "train.batch_rows=500", "data.shuffle_rows=4000"];
    let mut program = Command::new(env!("CARGO_BIN_EXE_forebay"));
    program.arg(command).args(sets.iter().flat_map(|set| ["--set", set])).args(flags);
    let program = program.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).envs(variables.iter().copied());
    let output = program.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs the program, again if a run has lost spans: its end waits for a few seconds, which a busy machine may need for more. Returns what
/// the last run wrote, and its spans. `tls`: the certificate and the key of the receiver, PEM.
fn run_with_all_spans(
    command: &str,
    dir: &Path,
    tls: Option<(String, String)>,
    flags: &[&str],
    variables: &[(&str, &str)],
) -> (String, Vec<Received>) {
    for _ in 0..20 {
        // Spans of a run that did not wait for them may come after its end: each run has a receiver of its own.
        let receiver = Receiver::start(tls.clone());
        let endpoint = if tls.is_some() { receiver.https() } else { receiver.http() };
        let text = common::exits(0, run(command, dir, &endpoint, flags, variables), &[]);
        if !text.contains(" were not") {
            return (text, receiver.received());
        }
    }
    panic!("each run lost spans");
}

/// The spans of each trace.
fn traces(received: &[Received]) -> BTreeMap<Vec<u8>, Vec<&Received>> {
    let mut traces = BTreeMap::<_, Vec<_>>::new();
    received.iter().for_each(|one| traces.entry(one.span.trace_id.clone()).or_default().push(one));
    traces
}

/// (epoch, window, batch): what the attributes call a span's batch.
fn name(span: &Span) -> (i64, i64, Option<i64>) {
    (number(span, "forebay.epoch").unwrap(), number(span, "forebay.window").unwrap(), number(span, "forebay.batch"))
}

/// Whether it is a span of a stage, a window or a batch, and not of a wait.
fn is_named(span: &Span) -> bool {
    !span.name.starts_with("wait: ")
}

/// Checks what is true of the spans of every run, and returns the names of the spans of the batches and of the windows.
fn check(received: &[Received], windows: &[i64]) -> [BTreeSet<String>; 2] {
    let traces = traces(received);
    let firsts: BTreeMap<&[u8], &Span> = received
        .iter()
        .filter(|one| one.span.parent_span_id.is_empty())
        .map(|one| (&one.span.trace_id[..], &one.span))
        .collect();
    let mut names = [BTreeSet::new(), BTreeSet::new()];
    let mut batches = BTreeSet::new();
    for (trace, spans) in &traces {
        let named: Vec<&Span> = spans.iter().map(|one| &one.span).filter(|span| is_named(span)).collect();
        let of: BTreeSet<_> = named.iter().map(|span| name(span)).collect();
        assert_eq!(of.len(), 1, "a trace is of one batch: {of:?}");
        let (_, window, batch) = *of.first().unwrap();
        assert!(windows.contains(&window), "window {window} was not asked for");
        let first = firsts.get(&trace[..]).unwrap_or_else(|| panic!("{of:?} has no first span"));
        let ids: BTreeSet<&[u8]> = spans.iter().map(|one| &one.span.span_id[..]).collect();
        assert_eq!(ids.len(), spans.len(), "an id of a span comes twice in {of:?}");
        for span in spans.iter().map(|one| &one.span) {
            assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
            assert!(
                span.parent_span_id.is_empty() || ids.contains(&span.parent_span_id[..]),
                "{} has a lost parent",
                span.name
            );
        }
        let to = &mut names[usize::from(batch.is_none())];
        to.extend(named.iter().map(|span| span.name.clone()));
        if batch.is_some() {
            assert!(batches.insert(name(first)));
            assert_eq!(first.links.len(), 1, "a batch is made of the rows of one window");
            let window_of = traces.get(&first.links[0].trace_id).expect("the window of the batch has spans");
            assert_eq!((name(&window_of[0].span).1, name(&window_of[0].span).2), (window, None));
        }
    }
    // 20,000 rows in windows of 4,000, in batches of 500.
    let expected = windows.iter().flat_map(|window| (0..8).map(move |batch| (0, *window, Some(batch))));
    assert_eq!(batches, expected.collect());
    names
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_batch_of_a_run_has_a_trace_with_a_span_of_each_stage() {
    let dir = tempfile::tempdir().unwrap();
    let (text_of_run, received) = run_with_all_spans("train", dir.path(), None, &["--spans", "1"], &[]);
    let [of_batches, of_windows] = check(&received, &[0, 1, 2, 3, 4]);
    assert_eq!(of_batches, set(&["batch", "lookup", "train", "push"]));
    assert!(of_windows.is_superset(&set(&["window", "read", "parse", "batch"])), "{of_windows:?}");
    assert!(text_of_run.contains(&format!("{} spans were sent", received.len())), "{text_of_run}");
    let one = received.iter().find(|one| one.span.name == "train").unwrap();
    assert_eq!(number(&one.span, "forebay.rows"), Some(500));
    assert_eq!(text(&one.resource, "service.name").as_deref(), Some("forebay-train"));
}

#[test]
fn one_window_of_n_is_sent_and_the_environment_names_the_service_and_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traces_of_run = || {
        let variables =
            [("TRACEPARENT", parent), ("OTEL_SERVICE_NAME", "ads"), ("OTEL_RESOURCE_ATTRIBUTES", "team=ranking")];
        let flags = ["--spans", "3"];
        let (_, received) = run_with_all_spans("train", dir.path(), None, &flags, &variables);
        check(&received, &[0, 3]);
        assert!(received.iter().all(|one| self::text(&one.resource, "service.name").as_deref() == Some("ads")));
        assert!(received.iter().all(|one| self::text(&one.resource, "team").as_deref() == Some("ranking")));
        traces(&received).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(traces_of_run(), traces_of_run(), "the traces follow from TRACEPARENT");
}

#[test]
fn the_processes_of_a_cluster_give_a_batch_one_trace() {
    let dir = tempfile::tempdir().unwrap();
    let sets = ["placement.readers=2", "placement.ps=1", "placement.lease_rows=4000"];
    let flags: Vec<&str> = ["--spans", "1"].into_iter().chain(sets.iter().flat_map(|set| ["--set", set])).collect();
    let (_, received) = run_with_all_spans("launch", dir.path(), None, &flags, &[]);
    let [of_batches, _] = check(&received, &[0, 1, 2, 3, 4]);
    assert_eq!(of_batches, set(&["batch", "ship", "receive", "lookup", "train", "push"]));
    for spans in traces(&received).values().filter(|spans| name(&spans[0].span).2.is_some()) {
        let services: BTreeSet<_> = spans.iter().filter_map(|one| text(&one.resource, "service.name")).collect();
        assert_eq!(services, set(&["forebay-reader", "forebay-trainer"]));
    }
}

#[test]
fn tls_is_believed_by_the_authority_that_is_named() {
    let (dir, certificate) =
        (tempfile::tempdir().unwrap(), rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap());
    let authority = dir.path().join("ca.pem");
    std::fs::write(&authority, certificate.cert.pem()).unwrap();
    let tls = (certificate.cert.pem(), certificate.signing_key.serialize_pem());
    let authority = [("OTEL_EXPORTER_OTLP_CERTIFICATE", authority.to_str().unwrap())];
    let (_, received) = run_with_all_spans("train", dir.path(), Some(tls.clone()), &["--spans", "1"], &authority);
    check(&received, &[0, 1, 2, 3, 4]);
    let receiver = Receiver::start(Some(tls));
    let (code, text) = run("train", dir.path(), &receiver.https(), &["--spans", "1"], &[]);
    assert!(code == Some(2) && text.contains("OTEL_EXPORTER_OTLP_CERTIFICATE"), "{text}");
}

#[test]
fn a_receiver_that_is_away_or_silent_harms_no_run() {
    let dir = tempfile::tempdir().unwrap();
    // A port that no other test is given.
    let away = "http://127.0.0.1:1".to_owned();
    // It takes connections and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    for endpoint in [away, silent] {
        let text = common::exits(0, run("train", dir.path(), &endpoint, &["--spans", "1"], &[]), &[]);
        assert!(text.contains("trained on 20,000 rows") || text.contains("20,000"), "{text}");
        assert!(text.contains("spans are lost, the run goes on") || text.contains("were not"), "{text}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |endpoint: &str, flags: &[&str], variables: &[(&str, &str)], why: &str| {
        common::exits(2, run("train", dir.path(), endpoint, flags, variables), &[why]);
    };
    refused("http://collector:4317", &["--spans", "1"], &[], "in the clear");
    refused("collector", &["--spans", "1"], &[], "OTEL_EXPORTER_OTLP_ENDPOINT is \"collector\"");
    refused("", &["--spans", "1"], &[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], "OTEL_EXPORTER_OTLP_PROTOCOL");
    refused("", &["--spans", "1"], &[("TRACEPARENT", "monday")], "TRACEPARENT is \"monday\"");
    refused("", &["--spans", "0"], &[], "--spans");
}
