//! `forebay serve`: the scores of `forebay predict`, from one version for each request, for all requests.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrow::array::{Array as _, ArrayRef, AsArray as _, BooleanArray, RecordBatch};
use arrow::datatypes::{Date32Type, TimestampNanosecondType};
use arrow::ipc::writer::FileWriter;
use serde_json::{Value, json};

use crate::common::{self, Background};
use crate::rows::{
    FINAL_MLPS, KINDS, KINDS_OF_LABELS, LINEAR_ONLY, OPTIONS, TABLES, TWO_TOWERS, WEIGHTS, block, job, model, predict,
    python_says, rows,
};
use crate::server::{Server, json_rows, read_to_end};

fn bits(scores: &[Option<f32>]) -> Vec<u32> {
    scores.iter().map(|score| score.unwrap().to_bits()).collect()
}

#[test]
fn scores_are_those_of_predict_bit_for_bit_however_many_rows_a_request_has() {
    let kinds = ["wide_deep", "wide_deep", "wide_deep", "deep_fm"].into_iter().chain(KINDS).zip([
        &LINEAR_ONLY[..],
        &TABLES,
        &OPTIONS[..],
        &[WEIGHTS],
        &[],
        &["model.pooling=mean"],
        &["model.hidden=[400, 400]"],
        &["data.negatives=0.5"],
        &["table.storage=f16"],
        &["table.storage=int8"],
        &[],
        FINAL_MLPS[0],
    ]);
    for (kind, settings) in kinds.chain(TWO_TOWERS.map(|settings| ("two_towers", settings))) {
        let dir = tempfile::tempdir().unwrap();
        let (model, data) = (model(dir.path(), kind, settings), rows(dir.path(), 4000, 700));
        let expected: Vec<u32> =
            predict(&model, &data, &dir.path().join("scores")).iter().map(|s| s.to_bits()).collect();
        let server = Server::start(&model, &["--threads", "2"]);
        let rows = json_rows(&server, &data);
        // Rows alone, too: some have null for a list, and nothing in the request says that the column has lists.
        let alone = (0..40).map(|row| (row, row + 1));
        for (from, to) in alone.chain([(0, 700), (699, 700), (3, 5), (10, 13), (50, 150), (100, 357), (2, 10), (0, 16)])
        {
            let (_, scores) = server.scores(&rows[from..to]);
            assert_eq!(bits(&scores), expected[from..to], "{kind} {settings:?}: rows {from} to {to}");
        }
        let (code, said) = {
            server.process.signal("-TERM");
            server.process.wait()
        };
        assert_eq!(code, Some(0), "{said}");
    }
}

/// The text of a moment in nanoseconds since 1970, at an offset from UTC.
fn text_of(nanoseconds: i64, offset_minutes: i64) -> String {
    let moment = nanoseconds + offset_minutes * 60_000_000_000;
    let naive = arrow::temporal_conversions::timestamp_ns_to_datetime(moment).unwrap();
    let zone = match offset_minutes {
        0 => "Z".to_owned(),
        minutes => {
            format!("{}{:02}:{:02}", if minutes < 0 { '-' } else { '+' }, minutes.abs() / 60, minutes.abs() % 60)
        }
    };
    format!("{}{zone}", naive.format("%Y-%m-%dT%H:%M:%S%.f"))
}

/// Hours, weekdays and ages of times as text are those of the columns of times in Parquet.
#[test]
fn dates_and_timestamps_as_text_have_the_scores_of_predict() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (model(dir.path(), "deep_fm", &OPTIONS), rows(dir.path(), 4000, 300));
    let expected: Vec<u32> = predict(&model, &data, &dir.path().join("scores")).iter().map(|s| s.to_bits()).collect();
    let server = Server::start(&model, &[]);
    let (mut rows, columns) = (json_rows(&server, &data), common::read_file(&data));
    let moments = columns["moment"].as_primitive::<TimestampNanosecondType>();
    let days = columns["day"].as_primitive::<Date32Type>();
    let mut texts = 0;
    for (at, row) in rows.iter_mut().enumerate() {
        if moments.is_valid(at) {
            let text = text_of(moments.value(at), [0, 330, -480][at % 3]);
            // Without a zone it is the same moment.
            row["moment"] = json!(if at % 6 == 0 { text.trim_end_matches('Z') } else { &text });
            texts += 1;
        }
        if days.is_valid(at) {
            row["day"] = json!(text_of(i64::from(days.value(at)) * 86_400_000_000_000, 0)[..10]);
            texts += 1;
        }
    }
    assert!(texts > 300, "{texts}");
    assert_eq!(bits(&server.scores(&rows).1), expected);
    rows[7]["moment"] = json!("soon");
    let (status, said) = server.send("POST", "/v1/score", json!({ "rows": rows }).to_string().as_bytes());
    assert!(status == 400 && said.contains("row 7: column `moment` is \\\"soon\\\", expected"), "{said}");
}

#[test]
fn several_labels_have_the_scores_of_predict_under_their_names() {
    for (kind, settings) in KINDS_OF_LABELS {
        let dir = tempfile::tempdir().unwrap();
        let (model, data) = (model(dir.path(), kind, settings), rows(dir.path(), 4000, 300));
        let names = ["score_label", "score_top", "score_top_given_label"];
        let names = if kind == "esmm" { &names[..] } else { &names[..2] };
        let expected = predict(&model, &data, &dir.path().join("scores"));
        let server = Server::start(&model, &["--threads", "2"]);
        let rows = json_rows(&server, &data);
        for (from, to) in [(0, 300), (0, 1), (3, 5), (10, 130)] {
            let body = json!({ "rows": rows[from..to] }).to_string();
            let (status, answer) = server.send("POST", "/v1/score", body.as_bytes());
            assert_eq!(status, 200, "{answer}");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert!(answer.get("scores").is_none(), "{answer}");
            for (column, name) in names.iter().enumerate() {
                let scores: Vec<Option<f32>> = serde_json::from_value(answer[name].clone()).unwrap();
                let of_column = expected.iter().skip(column).step_by(names.len()).skip(from).take(to - from);
                let of_column: Vec<u32> = of_column.map(|score| score.to_bits()).collect();
                assert_eq!(bits(&scores), of_column, "{kind} {name}: rows {from} to {to}");
            }
        }
    }
}

#[test]
fn the_example_of_the_page_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (dir.path().join("model"), common::parquet(dir.path(), 4000, 300));
    common::train(common::job(&common::parquet(dir.path(), 0, 2000), &[])).model.save(&folder).unwrap();
    let (server, script) = (Server::start(&folder, &[]), dir.path().join("score.py"));
    fs::write(&script, block("serve.md", "python", "/v1/score")).unwrap();
    let said = python_says(&script, &[&data, Path::new(&server.address)]);
    let (version, scores) = said.trim().split_once(' ').unwrap();
    assert_eq!(version, server.model()["version"]);
    let scores: Vec<f32> = scores.split(' ').map(|score| score.parse().unwrap()).collect();
    assert_eq!(scores, predict(&folder, &data, &dir.path().join("scores"))[..100]);

    // Its request, under load.
    let body = dir.path().join("request.json");
    let bench = ["bench", "serve", "--rate", "50", "--seconds", "1", "--address", &server.address, "--body"];
    let (code, said) = common::run(&[&bench[..], &[body.to_str().unwrap()]].concat());
    assert!(code == Some(0) && said.contains("p99") && !said.contains("NaN"), "{said}");
    fs::write(&body, "{}").unwrap();
    common::exits(3, common::run(&[&bench[..], &[body.to_str().unwrap()]].concat()), &["it has no `rows`"]);

    // The same rows over Arrow Flight.
    let flight = |file: &Path| common::run(&[&bench[..], &[file.to_str().unwrap(), "--flight"]].concat());
    common::exits(2, flight(&body), &["request.json is no file of Arrow IPC"]);
    let rows = common::read_rows(&data).slice(0, 100);
    let write = |name: &str, rows: &RecordBatch| {
        let file = dir.path().join(name);
        let mut writer = FileWriter::try_new(fs::File::create(&file).unwrap(), &rows.schema()).unwrap();
        writer.write(rows).unwrap();
        writer.finish().unwrap();
        file
    };
    let (code, said) = flight(&write("request.arrow", &rows));
    assert!(code == Some(0) && said.contains("p99") && !said.contains("NaN"), "{said}");
    let names: Vec<_> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    let booleans: ArrayRef = Arc::new(BooleanArray::from(vec![true; 100]));
    let booleans = RecordBatch::try_from_iter(names.into_iter().map(|name| (name, booleans.clone()))).unwrap();
    let (code, said) = flight(&write("booleans.arrow", &booleans));
    assert!(code != Some(0) && said.contains("Boolean"), "{said}");
}

#[test]
fn integers_of_a_column_of_numbers_are_numbers_whatever_stands_around_them() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (model(dir.path(), "lr", &[]), rows(dir.path(), 4000, 2));
    let server = Server::start(&model, &[]);
    let mut rows = json_rows(&server, &data);
    // `price` is a column of floating-point numbers, so 3 is 3.0; as an integer its logarithm would be taken.
    rows[0]["price"] = json!(3.0);
    let expected = server.scores(&rows).1;
    rows[0]["price"] = json!(3);
    assert_eq!(server.scores(&rows[..1]).1, expected[..1]);
    assert_eq!(server.scores(&rows).1, expected);
    let shared = json!({ "shared": rows[0], "rows": [{}, rows[1]] }).to_string();
    let (status, body) = server.send("POST", "/v1/score", shared.as_bytes());
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, answer["scores"].as_array().unwrap().len()), (200, 2), "{body}");
    assert_eq!(serde_json::from_value::<Vec<Option<f32>>>(answer["scores"].clone()).unwrap(), expected);
}

#[test]
fn what_is_wrong_with_a_request_is_told_and_the_next_one_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (model(dir.path(), "wide_deep", &[]), rows(dir.path(), 4000, 3));
    let mut server = Server::start(&model, &[]);
    let mut rows = json_rows(&server, &data);
    let deep = format!("{{\"rows\": [{{\"user\": {}", "[".repeat(1_000_000));
    let many = format!("{{\"rows\": [{}{{}}]}}", "{},".repeat(1 << 20));
    let long = vec![b' '; (16 << 20) + 1];
    let cases: [(&str, &str, &[u8], u16, &str); 16] = [
        ("GET", "/", b"", 404, "POST /v1/score"),
        ("GET", "/v1/score", b"", 405, "POST"),
        ("POST", "/v1/model", b"", 405, "GET"),
        ("POST", "/v1/score", b"", 400, "EOF"),
        ("POST", "/v1/score", b"\xff\xfe{}", 400, "not a request"),
        ("POST", "/v1/score", b"{\"rows\": [{\"cty\": \"x\"}]}", 400, "did you mean `city`?"),
        ("POST", "/v1/score", b"{\"rows\": [{\"city\": \"x\"}]}", 400, "no row has column"),
        ("POST", "/v1/score", b"{\"rows\": [{\"price\": NaN}]}", 400, "line 1 column"),
        ("POST", "/v1/score", b"{\"rows\": [{\"price\": 1e999}]}", 400, "out of range"),
        ("POST", "/v1/score", b"{\"rows\": [{\"user\": {\"a\": 1}}]}", 400, "expected a number, a string"),
        ("POST", "/v1/score", b"{\"rows\": [{\"city\": \"\\ud800\"}]}", 400, "not a request"),
        ("POST", "/v1/score", b"{\"rows\": 7}", 400, "a list of rows"),
        ("POST", "/v1/score", b"{\"rows\": []} ", 200, "\"scores\":[]"),
        ("POST", "/v1/score", deep.as_bytes(), 400, "not a request"),
        ("POST", "/v1/score", many.as_bytes(), 400, "split them over several requests"),
        ("POST", "/v1/score", &long, 413, "longer than 16777216 bytes"),
    ];
    for (method, path, body, status, words) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let (found, said) = server.send(method, path, body);
        assert!(found == status && said.contains(words), "{method} {path} {shown:?}: {found} {said}");
    }
    // A bad row has no score, the others have theirs.
    let expected = server.scores(&rows).1;
    rows[1]["site"] = json!("no hex");
    rows[2]["price"] = json!(1e300);
    let body = json!({ "rows": rows }).to_string();
    let (status, said) = server.send("POST", "/v1/score", body.as_bytes());
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(status, 200, "{said}");
    assert_eq!(
        serde_json::from_value::<Vec<Option<f32>>>(answer["scores"].clone()).unwrap(),
        [expected[0], None, None]
    );
    assert_eq!((&answer["bad_rows"][0]["row"], &answer["bad_rows"][1]["row"]), (&json!(1), &json!(2)));
    assert!(
        said.contains("expected up to 16 hexadecimal digits") && said.contains("expected a finite number"),
        "{said}"
    );

    assert!(server.process.is_running());
    let (_, text) = server.send("GET", "/metrics", b"");
    for line in ["forebay_serve_requests_total{code=\"400\"} 11", "forebay_serve_requests_total{code=\"200\"} 3"] {
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    }
    assert_eq!((server.metric("rows_total"), server.metric("bad_rows_total")), (6.0, 2.0));
    assert_eq!(server.metric("request_seconds_count"), 14.0);
    let (status, _) = server.send("GET", "/healthz", b"");
    let told = server.model();
    assert_eq!(status, 200);
    assert!(told["kind"] == "wide_deep" && told["rows"].as_u64().unwrap() > 100, "{told}");
    assert_eq!(told["version"], forebay::Model::load(&model, 1).unwrap().version().unwrap().to_string());
}

/// A bug: a compressed body was called wrong JSON.
#[test]
fn a_body_with_a_content_encoding_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&model(dir.path(), "lr", &[]), &[]);
    for (coding, status, words) in [
        ("gzip", 415, "Content-Encoding `gzip`, but compressed bodies are not read"),
        ("br", 415, "Content-Encoding `br`"),
        ("identity, zstd", 415, "Content-Encoding `identity, zstd`"),
        ("Identity", 200, "\"scores\":[]"),
    ] {
        let headers = format!("Content-Encoding: {coding}\r\n");
        let (found, said) = server.send_with("POST", "/v1/score", &headers, b"{\"rows\": []}");
        assert!(found == status && said.contains(words), "{coding}: {found} {said}");
    }
}

#[test]
fn a_folder_that_is_replaced_is_taken_between_requests_and_never_in_the_middle_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let data = rows(dir.path(), 4000, 200);
    let folder = model(dir.path(), "wide_deep", &[]);
    let old = predict(&folder, &data, &dir.path().join("old"));
    let other = common::train(job(&rows(dir.path(), 500, 2000), &["model.kind=wide_deep"])).model;
    let versions =
        [forebay::Model::load(&folder, 1).unwrap().version().unwrap(), other.version().unwrap()].map(|v| v.to_string());
    let server = Server::start(&folder, &["--threads", "2"]);
    let rows = json_rows(&server, &data);
    let stop = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let ask = || {
            let mut seen = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                seen.push(server.scores(&rows));
            }
            seen
        };
        let asking = [scope.spawn(ask), scope.spawn(ask)];
        common::until("requests are answered", || server.metric("request_seconds_count") > 4.0);
        other.save(&folder).unwrap();
        common::until("the new version is there", || server.model()["version"] == versions[1]);
        let count = server.metric("request_seconds_count");
        common::until("more requests are answered", || server.metric("request_seconds_count") > count + 4.0);
        stop.store(true, Ordering::SeqCst);
        asking.map(|thread| thread.join().unwrap()).concat()
    });
    let new = predict(&folder, &data, &dir.path().join("new"));
    assert_ne!(old, new);
    let mut counts = [0, 0];
    for (version, scores) in seen {
        let at = versions.iter().position(|v| *v == version).unwrap();
        counts[at] += 1;
        assert_eq!(
            bits(&scores),
            [&old, &new][at].iter().map(|s| s.to_bits()).collect::<Vec<_>>(),
            "version {version}"
        );
    }
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    assert_eq!(server.metric("model_changes_total"), 1.0);
}

/// A bug: clients were refused from then on, and the log did not say why.
#[test]
fn a_newer_model_with_other_columns_is_served_with_a_warning_that_names_them() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (model(dir.path(), "lr", &["columns.slots=['user', 'city']"]), rows(dir.path(), 4000, 20));
    let mut server = Server::start(&folder, &[]);
    let other = common::train(job(&data, &["model.kind=lr", "columns.slots=['city', 'day']"])).model;
    other.save(&folder).unwrap();
    server.process.wait_for("other columns than the one before: added `day`; gone `user`", 1);
    assert_eq!(server.model()["version"], other.version().unwrap().to_string());
}

#[test]
fn a_damaged_folder_is_logged_and_the_version_before_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (model(dir.path(), "lr", &[]), rows(dir.path(), 4000, 20));
    let mut server = Server::start(&folder, &[]);
    let rows = json_rows(&server, &data);
    let before = server.scores(&rows);
    for text in ["{\"format\": \"forebay model\"", "{}", "", "{\"format\": \"forebay model\", \"version\": 99}"] {
        let failures = server.metric("model_failures_total");
        // In one step, so that the server never reads a part of it.
        fs::write(dir.path().join("other"), text).unwrap();
        fs::rename(dir.path().join("other"), folder.join("manifest.json")).unwrap();
        common::until("the failure is counted", || server.metric("model_failures_total") > failures);
        assert_eq!(server.scores(&rows), before);
    }
    server.process.wait_for("stays: ", 4);
    fs::remove_dir_all(&folder).unwrap();
    server.process.wait_for("cannot read", 1);
    assert_eq!(server.scores(&rows), before);
}

/// A bug: the server kept the earlier version forever.
#[test]
fn a_folder_and_a_delta_that_are_copied_file_by_file_are_taken_when_they_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, deltas) = (model(dir.path(), "wide_deep", &[]), dir.path().join("deltas"));
    let save = |first, name: &str| {
        let (model, to) = (
            common::train(job(&rows(dir.path(), first, 2000), &["model.kind=wide_deep"])).model,
            dir.path().join(name),
        );
        model.save(&to).unwrap();
        (model.version().unwrap().to_string(), to)
    };
    let ((second, other), (third, newest)) = (save(500, "other"), save(900, "newest"));
    let made = dir.path().join("delta");
    let (old, new, to) = (other.display().to_string(), newest.display().to_string(), made.display().to_string());
    common::exits(0, common::run(&["export", "--model", &new, "--delta-from", &old, "--to", &to]), &[]);
    fs::create_dir(&deltas).unwrap();
    let server = Server::start(&folder, &["--deltas", deltas.to_str().unwrap()]);

    let copy = |from: &Path, to: &Path, name: &str| {
        fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        fs::copy(from.join(name), to.join(name)).unwrap();
    };
    let names = |of: &Path| -> Vec<String> {
        let manifest: Value = common::read_json(of.join("manifest.json"));
        let mut names = Vec::new();
        paths(&manifest, &mut names);
        names
    };
    for (from, to, version) in [(&other, &folder, second), (&made, &deltas.join("one"), third)] {
        let failures = server.metric("model_failures_total");
        copy(from, to, "manifest.json");
        common::until("the failure is counted", || server.metric("model_failures_total") > failures);
        let names = names(from);
        assert!(names.len() > 1, "{names:?}");
        names.iter().for_each(|name| copy(from, to, name));
        common::until("the new version is there", || server.model()["version"] == version);
    }
}

/// The files that a manifest names.
fn paths(json: &Value, into: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            into.extend(fields.get("path").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| paths(value, into));
        }
        Value::Array(values) => values.iter().for_each(|value| paths(value, into)),
        _ => {}
    }
}

#[test]
fn a_manifest_that_asks_for_more_memory_than_there_is_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "ctr_dnn", &[]);
    let path = folder.join("manifest.json");
    let mut manifest: Value = common::read_json(&path);
    manifest["job"]["model"]["hidden"] = json!([60_000, 60_000]);
    fs::write(&path, manifest.to_string()).unwrap();
    let (code, said) = common::run(&["serve", "--model", folder.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("its structure needs 360"), "{said}");
}

#[test]
fn requests_under_way_are_answered_after_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (model(dir.path(), "ctr_dnn", &["model.hidden=[256, 256]"]), rows(dir.path(), 4000, 1000));
    // The server ends requests that take longer than ten seconds. If the test itself took nine, it asks another server.
    let answered = (0..20).find_map(|_| {
        let mut server = Server::start(&folder, &["--threads", "1"]);
        let rows = json_rows(&server, &data);
        let body = json!({ "rows": rows }).to_string();
        let begun = Instant::now();
        // The server has accepted all of them. When it stops, one is not there yet; the others wait for their scores, or have them.
        let mut asking: Vec<_> = (0..4).map(|_| server.begin("POST", "/v1/score", body.len())).collect();
        asking[1..].iter_mut().for_each(|socket| socket.write_all(body.as_bytes()).unwrap());
        server.process.signal("-TERM");
        server.process.wait_for("answers the requests under way", 1);
        let _ = asking[0].write_all(body.as_bytes());
        let answers: Vec<_> = asking.into_iter().map(|socket| read_to_end(socket).map(|(status, _)| status)).collect();
        let in_time = begun.elapsed() < Duration::from_secs(9);
        common::exits(0, server.process.wait(), &[]);
        in_time.then_some(answers)
    });
    assert_eq!(answered.expect("this machine stands still for ten seconds, again and again"), vec![Ok(200); 4]);
}

#[test]
fn beyond_this_machine_it_needs_a_token_and_tls() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "lr", &[]);
    let serve = |more: &[&str]| common::run(&[&["serve", "--model", folder.to_str().unwrap()][..], more].concat());
    common::exits(2, serve(&["--listen", "0.0.0.0:0"]), &["a token and TLS are missing"]);
    common::exits(2, serve(&["--watch=-1"]), &["--watch is -1"]);
    for threads in ["0", "1025", "100000"] {
        common::exits(2, serve(&["--threads", threads]), &["--threads", "1..=1024"]);
    }
    let (cert, key) = certificate(dir.path());
    let [cert, key] = [&cert, &key].map(|path| path.to_str().unwrap());
    let said = common::exits(2, serve(&["--tls-cert", key, "--tls-key", key]), &["key.pem holds no CERTIFICATE"]);
    assert!(said.contains("tls_cert") && !said.contains("tls_ca"), "{said}");
    let (code, said) = common::run(&["serve", "--model", dir.path().to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert!(code == Some(2) && said.contains("manifest.json"), "{said}");

    let token = dir.path().join("token");
    fs::write(&token, "open-sesame").unwrap();
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start(&folder, &["--token-file", token.to_str().unwrap()]);
    assert_eq!(server.send("GET", "/healthz", b"").0, 200);
    for headers in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: open-sesame\r\n",
        "Authorization: Basic %%%\r\n",
        "Authorization: Basic b3Blbi1zZXNhbWU=\r\n",
    ] {
        let (status, said) = server.send_with("GET", "/v1/model", headers, b"");
        assert_eq!(status, 401, "{headers}");
        assert!(!headers.is_empty() || said.contains("send the header `Authorization: Bearer TOKEN`"), "{said}");
    }
    // As a browser sends it: a name, a colon, and the token.
    for headers in ["Authorization: bearer open-sesame\r\n", "Authorization: Basic bWU6b3Blbi1zZXNhbWU=\r\n"] {
        assert_eq!(server.send_with("GET", "/v1/model", headers, b"").0, 200, "{headers}");
    }
    drop(server);

    let tls = ["--token-file", token.to_str().unwrap(), "--tls-cert", cert, "--tls-key", key];
    let server = Server::start(&folder, &tls);
    let script = dir.path().join("ask.py");
    let ask = r#"
import json, ssl, sys, urllib.request
cert, address = sys.argv[1:]
request = urllib.request.Request(f"https://localhost:{address.split(':')[1]}/v1/model", headers={"Authorization": "Bearer open-sesame"})
print(json.load(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=cert)))["kind"])
"#;
    fs::write(&script, ask).unwrap();
    assert_eq!(python_says(&script, &[Path::new(cert), Path::new(&server.address)]).trim(), "lr");
}

/// Templates of compose and Kubernetes write variables without a value. `forebay` asked for their values.
#[test]
fn an_empty_variable_counts_as_missing_and_the_line_of_json_has_the_address_as_a_field() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "lr", &[]);
    let mut serve = common::forebay(&["serve", "--model", folder.to_str().unwrap(), "--log-format", "json"]);
    for name in ["FOREBAY_TOKEN_FILE", "FOREBAY_TLS_CERT", "FOREBAY_TLS_KEY", "FOREBAY_LOG"] {
        serve.env(name, "");
    }
    let mut process = Background::start(serve.args(["--listen", "127.0.0.1:0"]));
    process.wait_for("\"serving\"", 1);
    let said = process.output();
    let line = said.lines().find(|line| line.contains("\"serving\"")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    let server = Server { process, address: line["address"].as_str().unwrap().replace("http://", "") };
    let model = server.model();
    assert_eq!((&line["version"], &line["rows"]), (&model["version"], &model["rows"]), "{line}");
    for path in ["/v1/model", "/metrics"] {
        assert_eq!(server.send("HEAD", path, b""), (200, String::new()));
    }
}

/// Many systems start processes with a soft limit of 1,024 files, so a server of 4,096 connections could accept no more of them.
#[test]
fn a_server_may_open_as_many_sockets_as_its_hard_limit_allows() {
    let dir = tempfile::tempdir().unwrap();
    let folder = model(dir.path(), "lr", &[]);
    let script = "ulimit -Sn 100 && ulimit -Hn 128 && exec \"$0\" serve --model \"$1\" --listen 127.0.0.1:0";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_forebay"), folder.to_str().unwrap()]).env_remove("FOREBAY_LOG");
    let server = Server::of(&mut shell);
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.process.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("128"), "{line}");
    // Silent clients take all connections; the newest one gets an answer.
    let silent: Vec<_> = (0..150).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    assert_eq!(server.send("GET", "/healthz", b"").0, 200);
    drop(silent);
}

/// A certificate for `localhost` that signs itself, and its key.
fn certificate(dir: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert_path, key_path) = (dir.join("cert.pem"), dir.join("key.pem"));
    fs::write(&cert_path, cert.pem()).unwrap();
    fs::write(&key_path, signing_key.serialize_pem()).unwrap();
    (cert_path, key_path)
}
