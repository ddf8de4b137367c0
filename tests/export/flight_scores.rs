//! `forebay serve` over Arrow Flight, by pyarrow: the scores of `forebay predict`, in the order of the batches.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::Background;
use crate::rows::{KINDS, KINDS_OF_LABELS, OPTIONS, WEIGHTS, block, interpreter, model, predict, python_says, rows};
use crate::server::Server;

/// Scores a file in batches of several sizes, all columns of the answers, and says the scores as bits.
const ALL: &str = r#"
import struct, sys
import pyarrow.flight as flight, pyarrow.parquet as pq
data, address = sys.argv[1:]
client = flight.FlightClient(f"grpc://{address}")
table = pq.read_table(data)
for size in (1, 7, 100, 700):
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("score"))
    bits = []
    with writer:
        writer.begin(table.schema)
        for batch in table.slice(0, 40 if size == 1 else None).to_batches(max_chunksize=size):
            writer.write_batch(batch)
            answer = reader.read_chunk().data
            assert answer["error"].null_count == batch.num_rows == answer.num_rows
            scores = [answer[name].to_pylist() for name in answer.schema.names if name != "error"]
            bits += [struct.unpack("<I", struct.pack("<f", score))[0] for row in zip(*scores) for score in row]
        writer.done_writing()
    print(*bits)
"#;

#[test]
fn scores_are_those_of_predict_bit_for_bit_in_batches_of_any_size() {
    let kinds = KINDS.map(|kind| (kind, &[][..])).into_iter().chain([
        ("wide_deep", &OPTIONS[..]),
        ("deep_fm", &[WEIGHTS]),
        KINDS_OF_LABELS[2],
    ]);
    for (kind, settings) in kinds {
        let dir = tempfile::tempdir().unwrap();
        let (model, data) = (model(dir.path(), kind, settings), rows(dir.path(), 4000, 700));
        let expected = predict(&model, &data, &dir.path().join("scores"));
        let expected: Vec<String> = expected.iter().map(|score| score.to_bits().to_string()).collect();
        let (server, script) = (Server::start(&model, &["--threads", "2"]), dir.path().join("all.py"));
        fs::write(&script, ALL).unwrap();
        let said = python_says(&script, &[&data, Path::new(&server.address)]);
        let labels = expected.len() / 700;
        for (line, rows) in said.lines().zip([40, 700, 700, 700]) {
            let found: Vec<&str> = line.split(' ').collect();
            assert_eq!(found, expected[..rows * labels], "{kind} {settings:?}");
        }
        assert_eq!(said.lines().count(), 4);
    }
}

#[test]
fn the_example_of_the_page_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, data) = (model(dir.path(), "wide_deep", &[]), rows(dir.path(), 4000, 300));
    let (server, script) = (Server::start(&folder, &[]), dir.path().join("flight_score.py"));
    fs::write(&script, block("serve.md", "python", "do_exchange")).unwrap();
    let said = python_says(&script, &[&data, Path::new(&server.address)]);
    let mut scores: Vec<f32> = Vec::new();
    for line in said.lines() {
        let (version, found) = line.split_once(' ').unwrap();
        assert_eq!(version, server.model()["version"]);
        scores.extend(found.split(' ').map(|score| score.parse::<f32>().unwrap()));
    }
    assert_eq!((said.lines().count(), &scores), (3, &predict(&folder, &data, &dir.path().join("scores"))));
    assert_eq!(server.metric("rows_total"), 300.0, "Flight is counted as HTTP is");
}

/// Sends what is wrong in one way each, and says what the server says.
const WRONG: &str = r#"
import sys
import pyarrow as pa, pyarrow.compute as pc, pyarrow.flight as flight, pyarrow.parquet as pq
data, address = sys.argv[1:]
client = flight.FlightClient(f"grpc://{address}")
table = pq.read_table(data).drop_columns(["label"])
def ask(table, path=("score",), rows=None):
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(*path))
    try:
        with writer:
            writer.begin(table.schema)
            writer.write_batch(table.to_batches()[0])
            answer = reader.read_chunk().data
            writer.done_writing()
            return f"{answer.num_rows} rows, {answer['error'].null_count} good, {answer['error'].to_pylist()}"
    except Exception as e:
        return str(e).replace("\n", " ")
good = table.slice(0, 3).combine_chunks()
def but(name, column):
    return good.set_column(good.schema.names.index(name), name, column)
print(ask(good))
print(ask(good.drop_columns(["city"])))
print(ask(good.rename_columns(["cty" if name == "city" else name for name in good.schema.names])))
print(ask(but("city", pa.array([1, 2, 3]))))
print(ask(but("history", pa.array([1, 2, 3]))))
print(ask(but("price", pa.array([1, 2, 3]))))
print(ask(but("price", pa.array([1.0, float("inf"), 2.0]))))
print(ask(good.append_column("city", good["city"])))
print(ask(good, path=("scores",)))
print(ask(good, path=("score", "all")))
print(ask(pa.table({name: pa.nulls(2 << 20) for name in good.schema.names})))
print(ask(good.cast(pa.schema([pa.field(f.name, pa.int64() if f.type == pa.int32() else f.type) for f in good.schema]))))
print(ask(good.slice(0, 0)) if good.slice(0, 0).to_batches() else "0 rows")
try:
    print(client.do_get(flight.Ticket(b"x")).read_all())
except Exception as e:
    print(str(e).replace("\n", " "))
print(*(info.descriptor.path[0].decode() for info in client.list_flights()))
"#;

#[test]
fn what_is_wrong_with_a_batch_is_told_and_the_next_exchange_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (model(dir.path(), "wide_deep", &[]), rows(dir.path(), 4000, 300));
    let (server, script) = (Server::start(&model, &["--threads", "1"]), dir.path().join("wrong.py"));
    fs::write(&script, WRONG).unwrap();
    let said = python_says(&script, &[&data, Path::new(&server.address)]);
    let expected = [
        "3 rows, 3 good",
        "no column `city`",
        "no column `city` (`cty` is not a feature of the model)",
        "column `city` has integers in these rows, and the model was trained on strings",
        // Each number is a list of one.
        "3 rows, 3 good",
        "3 rows, 3 good",
        "3 rows, 2 good",
        "two columns `city`",
        "there is `score`",
        "`score/all`",
        "split them over several",
        "3 rows, 3 good",
        "0 rows",
        "",
        "score",
    ];
    assert_eq!(said.lines().count(), expected.len(), "{said}");
    for (line, words) in said.lines().zip(expected) {
        assert!(line.contains(words), "no {words:?} in: {line}");
    }
    assert!(
        said.contains("column `price` is inf (or a number too large for a float), expected a finite number"),
        "{said}"
    );
    server.process.signal("-TERM");
    assert_eq!(server.process.wait().0, Some(0));
}

/// Asks with a wrong token and with the right one, then holds its exchange open and says how it ends. It says the two answers in one line,
/// because pyarrow may write a warning to standard error between two lines.
const HOLDS: &str = r#"
import sys
import pyarrow.flight as flight, pyarrow.parquet as pq
data, address = sys.argv[1:]
client = flight.FlightClient(f"grpc://{address}")
batch = pq.read_table(data).to_batches()[0].slice(0, 5)
def exchange(token):
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("score"), options)
    writer.begin(batch.schema)
    writer.write_batch(batch)
    return writer, reader
try:
    exchange("wrong")[1].read_chunk()
except Exception as e:
    refused = type(e).__name__
writer, reader = exchange("open-sesame")
print(f"{refused}, then {reader.read_chunk().data.num_rows} rows", flush=True)
try:
    reader.read_chunk()
except Exception as e:
    print(e, flush=True)
"#;

#[test]
fn exchanges_need_the_token_and_do_not_hold_up_the_end_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (model(dir.path(), "lr", &[]), rows(dir.path(), 4000, 300));
    let token = dir.path().join("token");
    fs::write(&token, "open-sesame").unwrap();
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let server = Server::start(&model, &["--token-file", token.to_str().unwrap()]);
    let script = dir.path().join("holds.py");
    fs::write(&script, HOLDS).unwrap();
    let mut client = Command::new(interpreter());
    let mut client = Background::start(client.arg(&script).arg(&data).arg(&server.address));
    client.wait_for("FlightUnauthenticatedError, then 5 rows", 1);
    server.process.signal("-TERM");
    let said = crate::common::exits(0, server.process.wait(), &[]);
    assert!(!said.contains("they are cut"), "an idle exchange is ended, and not waited for: {said}");
    client.wait_for("this server stops", 1);
}
