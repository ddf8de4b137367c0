//! Predictions: a row for each row of the input, in its order; published whole or not at all.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../common/address.rs"]
mod address;
mod apart;
#[path = "../common/mod.rs"]
mod common;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, Int32Array, ListArray, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float32Type, Int32Type, UInt32Type};
use arrow::ipc::writer::FileWriter;
use common::read_rows;
use forebay::Model;
use forebay::models::auc_exact;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

fn scores(rows: &RecordBatch) -> &Float32Array {
    rows["score"].as_primitive::<Float32Type>()
}

/// A model of 4,000 rows, and its folder.
fn model(dir: &Path, settings: &[&str]) -> (Model, PathBuf) {
    let rows = common::parquet(dir, 0, 4000);
    let trained = common::train(common::job(&rows, settings));
    let folder = dir.join("model");
    trained.model.save(&folder).unwrap();
    (trained.model, folder)
}

/// The arguments of a prediction.
fn arguments<'a>(model: &'a Path, data: &'a Path, out: &'a Path) -> Vec<&'a str> {
    let mut arguments = vec!["predict"];
    for (name, path) in [("--model", model), ("--data", data), ("--out", out)] {
        arguments.extend([name, path.to_str().unwrap()]);
    }
    arguments
}

/// Predicts into a folder; returns the rows and what the program said.
fn predict(model: &Path, data: &Path, more: &[&str]) -> (RecordBatch, String) {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("scores");
    let said = common::exits(0, common::run(&[&arguments(model, data, &folder)[..], more].concat()), &[]);
    (read_rows(&folder), said)
}

/// A Parquet file with these columns.
fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    common::write_parquet(path, &batch);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A folder with `copies` files for each file of `rows`, with the same rows.
fn copies(rows: &Path, copies: usize) -> PathBuf {
    let many = rows.with_extension("many");
    fs::create_dir(&many).unwrap();
    for copy in 0..copies {
        for file in names(rows) {
            fs::hard_link(rows.join(&file), many.join(format!("{copy:03}-{file}"))).unwrap();
        }
    }
    many
}

#[test]
fn scores_stand_in_the_order_of_the_rows_and_make_the_auc_of_the_evaluation() {
    for kind in ["lr", "fm", "wide_deep", "deep_fm", "dcn_v2", "ctr_dnn", "final_mlp"] {
        let dir = tempfile::tempdir().unwrap();
        let (model, folder) = model(dir.path(), &[&format!("model.kind={kind}")]);
        let data = common::parquet(dir.path(), 4000, 10_000);
        let (rows, said) = predict(&folder, &data, &["--keep", "C3,label,I2"]);
        assert!(said.contains("10,000 rows"), "{said}");
        let input = read_rows(&data);
        for column in ["C3", "label", "I2"] {
            assert_eq!(&rows[column], &input[column], "{column}");
        }
        assert_eq!(rows.num_columns(), 4);
        assert_eq!(scores(&rows).null_count(), 0);
        let labels: Vec<f32> = rows["label"].as_primitive::<Int32Type>().values().iter().map(|&l| l as f32).collect();
        let (evaluation, _) = model.evaluate(data.to_str().unwrap()).unwrap();
        assert_eq!(evaluation.auc, auc_exact(scores(&rows).values(), &labels), "{kind}");
        let distinct: HashSet<u32> = scores(&rows).values().iter().map(|score| score.to_bits()).collect();
        assert!(distinct.len() > 1000, "{kind}: {} scores", distinct.len());
    }
}

#[test]
fn several_inputs_are_read_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    // Not in the order of their names.
    let [first, second] = [8000, 4000].map(|from| common::parquet(dir.path(), from, 3000));
    let keep = ["--keep", "label,C1"];
    let expected = [&first, &second].map(|data| predict(&folder, data, &keep).0);
    let expected = concat_batches(&expected[0].schema(), &expected).unwrap();
    let more = ["--data", second.to_str().unwrap()];
    for readers in [&[][..], &["--readers", "2"]] {
        let (rows, said) = predict(&folder, &first, &[&more[..], &keep, readers].concat());
        assert!(rows == expected && said.contains("6,000 rows"), "{readers:?}: {said}");
    }
    let printed = |data: &Path, more: &[&str]| {
        let output = common::forebay(&[&arguments(&folder, data, Path::new("-"))[..], &keep, more].concat()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let of_second = printed(&second, &[]);
    let (_, of_second) = of_second.split_once('\n').unwrap();
    assert_eq!(printed(&first, &more), printed(&first, &[]) + of_second);
    let out = dir.path().join("scores");
    let refused = |data: &str, words: &[&str]| {
        let several = [&arguments(&folder, &first, &out)[..], &["--data", data]].concat();
        common::exits(2, common::run(&several), words);
    };
    refused(first.to_str().unwrap(), &["parquet-8000", "twice"]);
    refused(dir.path().join("nowhere").to_str().unwrap(), &["nowhere"]);
    // The output would be among the rows of the second one.
    refused(dir.path().to_str().unwrap(), &["scores", "would be taken for rows"]);
    assert!(!out.exists());
}

#[test]
fn a_row_has_the_score_that_it_has_alone_whatever_stands_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=fm"]);
    let data = common::parquet(dir.path(), 4000, 5000);
    let (all, _) = predict(&folder, &data, &[]);
    let input = read_rows(&data);
    for row in [0, 4095, 4096, 4999] {
        let one = input.slice(row, 1);
        let path = dir.path().join("one.parquet");
        let schema = one.schema();
        write(&path, schema.fields().iter().map(|f| (f.name().as_str(), Arc::clone(&one[f.name()]))).collect());
        assert_eq!(scores(&predict(&folder, &path, &[]).0).value(0), scores(&all).value(row), "row {row}");
    }
}

#[test]
fn rows_need_no_label_in_parquet_and_in_text() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let data = common::parquet(dir.path(), 4000, 3000);
    let (expected, _) = predict(&folder, &data, &[]);
    let input = read_rows(&data);
    let unlabelled = dir.path().join("unlabelled.parquet");
    let schema = input.schema();
    let features = schema.fields().iter().map(|f| f.name().as_str()).filter(|&name| name != "label");
    write(&unlabelled, features.map(|name| (name, Arc::clone(&input[name]))).collect());
    assert_eq!(predict(&folder, &unlabelled, &[]).0, expected);

    let text = common::text(dir.path(), 4000, 3000);
    assert_eq!(predict(&folder, &text, &[]).0, expected, "text with labels");
    let (with_label, _) = predict(&folder, &text, &["--keep", "label,C26"]);
    assert_eq!(with_label["label"].as_primitive::<Int32Type>(), input["label"].as_primitive::<Int32Type>());
    assert_eq!(with_label["C26"].as_primitive::<UInt32Type>(), input["C26"].as_primitive::<UInt32Type>());

    let mut lines = String::new();
    for file in names(&text) {
        lines += &fs::read_to_string(text.join(file)).unwrap();
    }
    let bare: String = lines.lines().map(|line| format!("{}\n", line.split_once('\t').unwrap().1)).collect();
    let file = dir.path().join("unlabelled.txt");
    fs::write(&file, bare).unwrap();
    assert_eq!(predict(&folder, &file, &[]).0, expected, "text without labels");
    let out = dir.path().join("scores");
    let (code, said) = common::run(&[&arguments(&folder, &file, &out)[..], &["--keep", "label"]].concat());
    assert!(code == Some(2) && said.contains("39 fields"), "a label that is kept must be there: {code:?} {said}");
}

/// A model over `x` (dense) and `c` (a list of hex), and its folder.
fn small_model(dir: &Path) -> PathBuf {
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>((0..200).map(|i| Some((0..i % 3).map(Some))));
    let file = dir.join("small.parquet");
    write(
        &file,
        vec![
            ("label", Arc::new(Int32Array::from_iter_values((0..200).map(|i| i % 2))) as ArrayRef),
            ("x", Arc::new(Float32Array::from_iter_values((0..200).map(|i| (i % 2) as f32)))),
            ("c", Arc::new(StringArray::from_iter_values((0..200).map(|i| format!("{:x}", i % 7))))),
            ("list", Arc::new(lists)),
        ],
    );
    let columns = "columns = { dense = ['x'], slots = [{ column = 'c', kind = 'hex' }, 'list'] }\nmodel.kind = 'lr'";
    let settings = [format!("data.train={}", file.display())];
    let folder = dir.join("model");
    common::train(forebay::Job::from_toml(columns, &settings).unwrap()).model.save(&folder).unwrap();
    folder
}

#[test]
fn a_bad_row_keeps_its_place_without_a_score_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let data = dir.path().join("data.parquet");
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), None, Some(vec![]), None]);
    let ids = StringArray::from(vec![Some("a"), None, Some("c,\"d\""), Some("e")]);
    write(
        &data,
        vec![
            ("x", Arc::new(Float32Array::from(vec![Some(1.0), Some(f32::NAN), None, Some(0.5)])) as ArrayRef),
            ("c", Arc::new(StringArray::from(vec!["1", "2", "3", "not hex"]))),
            ("list", Arc::new(lists)),
            ("id", Arc::new(ids.clone())),
        ],
    );
    let out = dir.path().join("scores");
    let (code, said) = common::run(&arguments(&model, &data, &out));
    let place = "data.parquet`, row 1 (counted from 0): column `x` is NaN";
    assert!(code == Some(2) && said.contains(place), "{code:?} {said}");
    assert_eq!(names(dir.path()), ["data.parquet", "model", "small.parquet"]);

    let skip = ["--set", "data.on_bad_row=skip", "--keep", "id,list"];
    let (rows, said) = predict(&model, &data, &skip);
    assert_eq!(rows["id"].as_string::<i32>(), &ids);
    assert_eq!((0..4).map(|row| scores(&rows).is_valid(row)).collect::<Vec<_>>(), [true, false, true, false]);
    assert!(said.contains("1 row without a score: dense value is not finite"), "{said}");
    assert!(said.contains("1 row without a score: category is not hexadecimal"), "{said}");

    let output = common::forebay(&[&arguments(&model, &data, Path::new("-"))[..], &skip].concat()).output().unwrap();
    let (text, notes) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let score = |row| scores(&rows).value(row);
    let expected = format!("id,list,score\na,[1],{}\n,,\n\"c,\"\"d\"\"\",[],{}\ne,,\n", score(0), score(2));
    assert_eq!(text, expected);
    assert!(notes.contains("1 row without a score: dense value is not finite"), "{notes}");
    // A bug: with --quiet nothing said so.
    let quiet = [&arguments(&model, &data, Path::new("-"))[..], &skip, &["--quiet"]].concat();
    let notes = String::from_utf8(common::forebay(&quiet).output().unwrap().stderr).unwrap();
    assert!(notes.contains("WARN 1 row without a score: dense value is not finite"), "{notes}");

    let all_bad = dir.path().join("bad.parquet");
    let x: ArrayRef = Arc::new(Float32Array::from(vec![f32::NAN; 3]));
    let c: ArrayRef = Arc::new(StringArray::from(vec!["1"; 3]));
    let list: ArrayRef = Arc::new(Int32Array::from(vec![1; 3]));
    write(&all_bad, vec![("x", x), ("c", c), ("list", list)]);
    assert_eq!(scores(&predict(&model, &all_bad, &skip[..2]).0).null_count(), 3);
}

/// A bug: such columns could not be named.
#[test]
fn columns_with_commas_and_spaces_in_their_names_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (model, data) = (small_model(dir.path()), dir.path().join("data.parquet"));
    let column = |from: i32| Arc::new(Int32Array::from_iter_values(from..from + 3)) as ArrayRef;
    let c: ArrayRef = Arc::new(StringArray::from(vec!["1"; 3]));
    let features =
        vec![("x", Arc::new(Float32Array::from(vec![1.0_f32; 3])) as ArrayRef), ("c", c), ("list", column(0))];
    write(&data, [features, vec![("buy, now", column(10)), (" lead", column(20))]].concat());
    let keep = ["--keep", "x,\"buy, now\"", "--keep", "\" lead\""];
    for readers in [&[][..], &["--readers", "1"]] {
        let (rows, _) = predict(&model, &data, &[&keep[..], readers].concat());
        assert_eq!((&rows["buy, now"], &rows[" lead"]), (&column(10), &column(20)));
        assert_eq!(rows.num_columns(), 4);
    }
}

/// The settings in single quotes that an error advises.
fn advised(said: &str) -> Vec<&str> {
    let (_, advice) = said.split_once("if only some files or rows have it, add ").expect(said);
    advice.split("--set '").skip(1).flat_map(|rest| ["--set", rest.split('\'').next().unwrap()]).collect()
}

/// A bug: the error led to `columns.optional`, which refuses a column that is not in `columns.extra`, too.
#[test]
fn a_kept_column_of_only_some_files_is_kept_with_the_settings_that_the_error_advises() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    for format in ["csv", "jsonl", "parquet"] {
        let (data, out) = (dir.path().join(format), dir.path().join("out"));
        fs::create_dir(&data).unwrap();
        for (name, lead) in [("a", true), ("b", false)] {
            let path = data.join(format!("{name}.{format}"));
            match (format, lead) {
                ("csv", true) => fs::write(path, "x,c,list,lead\n1,1,1,9\n").unwrap(),
                ("csv", false) => fs::write(path, "x,c,list\n2,1,1\n").unwrap(),
                ("parquet", _) => {
                    let of = |value: i32| Arc::new(Int32Array::from(vec![value])) as ArrayRef;
                    let c: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
                    let mut columns = vec![("x", Arc::new(Float32Array::from(vec![1.0])) as ArrayRef), ("c", c)];
                    columns.push(("list", of(1)));
                    columns.extend(lead.then(|| ("lead", of(9))));
                    write(&path, columns);
                }
                // No file has the key in its first lines.
                _ => {
                    let first = "{\"x\": 1, \"c\": \"1\", \"list\": [1]}\n".repeat(3000);
                    let last = if lead { "{\"x\": 1, \"c\": \"1\", \"list\": [1], \"lead\": 9}\n" } else { "" };
                    fs::write(path, format!("{first}{last}")).unwrap();
                }
            }
        }
        for readers in [&[][..], &["--readers", "1"]] {
            let keep = [&["--keep", "lead,x"], readers].concat();
            let arguments = [&arguments(&model, &data, &out)[..], &keep].concat();
            let said = common::exits(2, common::run(&arguments), &["no column `lead`", "columns.extra"]);
            let (rows, _) = predict(&model, &data, &[&keep[..], &advised(&said)].concat());
            assert_eq!(rows["lead"].len() - rows["lead"].null_count(), 1, "{format}: {said}");
        }
    }
    // A feature need not be in `columns.extra`. What the job says stays.
    fs::write(dir.path().join("csv/b.csv"), "c,list\n1,1\n").unwrap();
    let out = dir.path().join("out");
    let data = dir.path().join("csv");
    let first = ["--keep", "lead", "--set", "columns.extra=[\"lead\"]", "--set", "columns.optional=[\"lead\"]"];
    let said = common::exits(2, common::run(&[&arguments(&model, &data, &out)[..], &first].concat()), &["`x`"]);
    assert_eq!(advised(&said), ["--set", "columns.optional=[\"lead\", \"x\"]"]);
    assert_eq!(predict(&model, &data, &[&first[..4], &advised(&said)].concat()).0.num_rows(), 2);
}

/// A bug: hexadecimal digits became the integer that they stand for, and large integers the nearest number.
#[test]
fn kept_columns_of_text_are_what_the_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let (csv, json) = (dir.path().join("kept.csv"), dir.path().join("kept.jsonl"));
    fs::write(&csv, "x,c,list\n1,0000abcd,1\n9007199254740992,FFFF,2\n0,,3\n").unwrap();
    let line = |x: &str, c: &str, list: u32| format!("{{\"x\":{x},\"c\":{c},\"list\":[{list}]}}\n");
    let lines = [line("1", "\"0000abcd\"", 1), line("9007199254740992", "\"FFFF\"", 2), line("0", "null", 3)];
    fs::write(&json, lines.concat()).unwrap();
    for file in [&csv, &json] {
        let (rows, _) = predict(&model, file, &["--keep", "c,x"]);
        let kept: Vec<Option<&str>> = rows["c"].as_string::<i32>().iter().collect();
        assert_eq!(kept, [Some("0000abcd"), Some("FFFF"), None]);
        assert_eq!(scores(&rows), scores(&predict(&model, file, &[]).0));
    }
    fs::write(&csv, "x,c,list\n9007199254740993,1,1\n").unwrap();
    assert_eq!(predict(&model, &csv, &["--keep", "c"]).0.num_rows(), 1);
    let out = dir.path().join("out");
    let (code, said) = common::run(&[&arguments(&model, &csv, &out)[..], &["--keep", "x"]].concat());
    assert!(code == Some(2) && said.contains("found `9007199254740993`") && said.contains("--keep"), "{said}");
    fs::write(&csv, "x,c,list\n1,xyz,1\n").unwrap();
    let (code, said) = common::run(&[&arguments(&model, &csv, &out)[..], &["--keep", "c"]].concat());
    assert!(code == Some(2) && said.contains("up to 16 hex digits"), "{said}");
}

/// Criteo's text: 100 rows, a line that is no row, and the same rows again.
fn text_with_a_bad_line(dir: &Path) -> PathBuf {
    let text = common::text(dir, 4000, 100);
    let file = text.join(&names(&text)[0]);
    let lines = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{lines}1\tbroken\n{lines}")).unwrap();
    file
}

#[test]
fn lines_that_are_no_rows_are_left_out_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=lr"]);
    let file = text_with_a_bad_line(dir.path());
    let (rows, said) = predict(&folder, &file, &["--set", "data.on_bad_row=skip"]);
    assert_eq!(rows.num_rows(), 200);
    assert_eq!(rows.slice(0, 100), rows.slice(100, 100));
    assert!(said.contains("left out 1 row: too few fields"), "{said}");
}

#[test]
fn what_cannot_be_predicted_is_refused_by_name_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let data = dir.path().join("small.parquet");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("file"), "dear").unwrap();
    fs::create_dir(path("full")).unwrap();
    fs::write(path("full/letters"), "dear").unwrap();
    let none: ArrayRef = Arc::new(Float32Array::from(Vec::<f32>::new()));
    let words: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
    write(&path("empty.parquet"), vec![("x", none.clone()), ("c", words.clone()), ("list", words.clone())]);
    write(&path("lacks.parquet"), vec![("x", none), ("c", words)]);
    fs::create_dir(path("damaged")).unwrap();
    for file in ["manifest.json", "dense.safetensors"] {
        fs::copy(model.join(file), path("damaged").join(file)).unwrap();
    }
    let before = names(dir.path());
    let (scores, nowhere) = (path("scores"), path("nowhere"));
    let write_to = |folder: &str| format!("data.on_bad_row={{ write_to = {:?} }}", path(folder).to_str().unwrap());
    let (in_scores, in_rows) = (write_to("scores/bad"), write_to("damaged"));
    let (in_scores, in_rows) = (["--set", in_scores.as_str()], ["--set", in_rows.as_str(), "--readers", "1"]);
    let cases: Vec<(&Path, PathBuf, PathBuf, &[&str], &str)> = vec![
        (&model, data.clone(), path("file"), &[], "is a file"),
        (&model, data.clone(), path("scores.csv"), &[], "write CSV with --out - > "),
        (&model, data.clone(), path("full"), &[], "holds files already"),
        (&model, data.clone(), path("file/scores"), &[], "Not a directory"),
        (&model, data.clone(), PathBuf::from("/proc/nowhere/scores"), &[], "/proc/nowhere"),
        (&model, nowhere.clone(), scores.clone(), &[], "nowhere"),
        (&model, path("empty.parquet"), scores.clone(), &[], "no rows"),
        (&model, path("lacks.parquet"), scores.clone(), &[], "`list`"),
        (&model, data.clone(), scores.clone(), &["--keep", "lable"], "label"),
        (&model, data.clone(), scores.clone(), &["--keep", "x,x"], "twice"),
        (&model, data.clone(), scores.clone(), &["--keep", "score"], "name of the result"),
        (&model, data.clone(), scores.clone(), &["--set", "data.on_bad_rows=skip"], "on_bad_row"),
        (&nowhere, data.clone(), scores.clone(), &[], "not a model folder"),
        (&model, data.clone(), scores.clone(), &in_scores[..], "the folder of the output"),
        (&model, path("damaged"), scores.clone(), &in_rows[..2], "would take the bad rows for rows"),
        (&model, path("damaged"), scores.clone(), &in_rows[..], "would take the bad rows for rows"),
    ];
    for (model, data, out, more, words) in cases {
        let (code, said) = common::run(&[&arguments(model, &data, &out)[..], more].concat());
        assert!(code == Some(2) && said.contains(words), "{words}: {code:?} {said}");
        assert_eq!(names(dir.path()), before, "{words}");
    }
    common::exits(2, common::run(&arguments(&path("damaged"), &data, &scores)), &["shard-0000.parquet"]);
    // An empty input is refused on standard output, too, before a header is written.
    let output = common::forebay(&arguments(&model, &path("empty.parquet"), Path::new("-"))).output().unwrap();
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
    // Only rows are replaced, and none that are read.
    let replaced = |data: &Path| common::run(&[&arguments(&model, data, &path("full"))[..], &["--replace"]].concat());
    common::exits(2, replaced(&data), &["it holds \"letters\""]);
    fs::remove_file(path("full/letters")).unwrap();
    fs::copy(&data, path("full/old.parquet")).unwrap();
    common::exits(2, replaced(&path("full")), &["old.parquet, which the command reads"]);
    common::exits(0, replaced(&data), &[]);
    assert_eq!(names(&path("full")), ["part-00000.parquet"]);
    // The next program would read the scores as rows.
    let among = format!("is in {}, which is read as a whole", path("full").display());
    for command in ["predict", "convert"] {
        let (full, out) = (path("full"), path("full/scores"));
        let convert = ["data", "convert", full.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let (code, said) = match command {
            "predict" => common::run(&arguments(&model, &full, &out)),
            _ => common::run(&convert),
        };
        assert!(code == Some(2) && said.contains(&among), "{command}: {code:?} {said}");
        assert_eq!(names(&full), ["part-00000.parquet"]);
    }
}

#[test]
fn a_closed_standard_output_is_no_error_and_a_full_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let model = small_model(dir.path());
    let data = dir.path().join("small.parquet");
    let arguments = arguments(&model, &data, Path::new("-"));
    let closed = std::io::pipe().unwrap().1;
    let output = common::forebay(&arguments).stdout(closed).stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = common::forebay(&arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"), "{output:?}");
}

#[test]
fn a_signal_ends_a_prediction_without_leaving_half_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_, model) = model(dir.path(), &["model.kind=lr"]);
    let rows = common::parquet(dir.path(), 4000, 20_000);
    let many = copies(&rows, 500);
    let results = dir.path().join("results");
    fs::create_dir(&results).unwrap();
    let out = results.join("scores");
    // A prediction that was over before the signal is done again.
    let is_stopped = (0..20).any(|_| {
        let mut run = common::Background::start(&mut common::forebay(&arguments(&model, &many, &out)));
        if run.has_staged(&results) {
            run.signal("-TERM");
        }
        let (code, said) = run.wait();
        if code == Some(0) {
            fs::remove_dir_all(&out).unwrap();
            return false;
        }
        assert_eq!(code, Some(5), "{said}");
        assert_eq!(names(&results), Vec::<String>::new());
        // Its end does not wait long for this line: on a busy machine it may be missing.
        said.contains("no scores are written")
    });
    assert!(is_stopped, "20 predictions were over before the signal, or did not say why they end");
}

#[test]
fn predictions_of_a_program_are_an_iterator_that_may_be_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = model(dir.path(), &["model.kind=ctr_dnn"]);
    let data = common::parquet(dir.path(), 4000, 20_000);
    let path = data.to_str().unwrap();
    let mut predictions = model.predict(path, &["I1"]).unwrap();
    let first = predictions.next().unwrap().unwrap();
    assert_eq!(
        first["I1"].as_primitive::<Int32Type>(),
        read_rows(&data).slice(0, first.num_rows())["I1"].as_primitive()
    );
    assert!(predictions.counts().is_none());
    drop(predictions);
    let mut predictions = model.predict(path, &[]).unwrap();
    let rows: usize = predictions.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!((rows, predictions.counts().unwrap().rows), (20_000, 20_000));
    assert!(predictions.next().is_none(), "it stays at its end");
    let mut failing = model.predict(path, &["C99"]).unwrap();
    assert!(failing.next().unwrap().unwrap_err().to_string().contains("C99"));
    assert!(failing.next().is_none(), "it ends after its fault");
}

#[test]
fn eval_of_several_sets_prints_a_line_of_json_each_that_agrees_with_the_scores() {
    let dir = tempfile::tempdir().unwrap();
    let (_, folder) = model(dir.path(), &["model.kind=wide_deep"]);
    let sets = [common::parquet(dir.path(), 4000, 3000), common::text(dir.path(), 9000, 1000)];
    let [first, second] = sets.each_ref().map(|set| set.to_str().unwrap());
    let eval = ["eval", "--model", folder.to_str().unwrap(), "--data", first, "--data"];
    let output = common::forebay(&[&eval[..], &[second, "--json"]].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for (line, set) in lines.iter().zip(&sets) {
        let (rows, _) = predict(&folder, set, &["--keep", "label"]);
        let labels: Vec<f32> = rows["label"].as_primitive::<Int32Type>().values().iter().map(|&l| l as f32).collect();
        let scores = scores(&rows).values();
        let n = labels.len() as f64;
        let both = || scores.iter().zip(&labels).map(|(&p, &y)| (f64::from(p), f64::from(y)));
        let positives: f64 = both().map(|(_, y)| y).sum();
        let logloss = -both().map(|(p, y)| if y == 1.0 { p.ln() } else { (1.0 - p).ln() }).sum::<f64>() / n;
        let labels_and_scores: Vec<_> = both().map(|(p, y)| (y, p)).collect();
        let rate = positives / n;
        let entropy = -(rate * rate.ln() + (1.0 - rate) * (1.0 - rate).ln());
        assert_eq!(line["path"], set.to_str().unwrap());
        assert_eq!((&line["rows"], &line["positives"]), (&(n as u64).into(), &(positives as u64).into()));
        for (name, expected) in [
            ("auc", common::auc_by_pairs(&labels_and_scores).unwrap()),
            ("logloss", logloss),
            ("normalized_entropy", logloss / entropy),
            ("copc", positives / both().map(|(p, _)| p).sum::<f64>()),
        ] {
            let found = line[name].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-6, "{name}: {found}, expected {expected}");
        }
        let bins = line["reliability"].as_array().unwrap();
        let rows: Vec<u64> = bins.iter().map(|bin| bin["rows"].as_u64().unwrap()).collect();
        assert!(rows.len() == 10 && rows.iter().all(|&rows| rows.abs_diff(labels.len() as u64 / 10) < 5), "{rows:?}");
    }
    // A report leaves the JSON on standard output alone.
    for more in [&["--json"][..], &["--log-format", "json"]] {
        let output = common::forebay(&[&eval[..], &[second, "--report"], more].concat()).output().unwrap();
        let (text, notes) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        assert!(output.status.success() && text.lines().count() == 2 && text.lines().all(json), "{more:?}: {text}");
        let reports = notes.lines().filter(|line| line.starts_with("{\"report\":")).count();
        assert!(notes.contains("ledger") && (more.len() == 1 || reports == 2 && notes.lines().all(json)), "{notes}");
    }
    let ran = common::run(&[&eval[..], &[second]].concat());
    common::exits(0, ran, &[&format!("{second}: 1,000 rows"), "normalized entropy", "COPC", "  observed "]);
    // A set that is not there does not take the result of the one before it.
    common::exits(2, common::run(&[&eval[..], &["/nowhere"]].concat()), &["3,000 rows", "/nowhere"]);
}

/// The Parquet files of a folder as Arrow files, with record batches like the row groups.
fn as_arrow(parquet: &Path) -> PathBuf {
    let folder = parquet.with_extension("arrow");
    fs::create_dir(&folder).unwrap();
    for file in fs::read_dir(parquet).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|ending| ending != "parquet") {
            continue;
        }
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&file).unwrap()).unwrap();
        let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
        let (rows, mut at) = (common::read_file(&file), 0);
        let name = folder.join(file.file_name().unwrap()).with_extension("feather");
        let mut writer = FileWriter::try_new(File::create(name).unwrap(), &rows.schema()).unwrap();
        for group in groups {
            writer.write(&rows.slice(at, group as usize)).unwrap();
            at += group as usize;
        }
        writer.finish().unwrap();
    }
    folder
}

#[test]
fn rows_in_arrow_files_train_the_same_bits_and_have_the_same_scores() {
    let dir = tempfile::tempdir().unwrap();
    let parquet = common::parquet(dir.path(), 0, 4000);
    let arrow = as_arrow(&parquet);
    let scores_of = |train: &Path, rows: &Path| {
        let folder = dir.path().join(format!("model-{}", train.extension().is_some()));
        if !folder.exists() {
            common::train(common::job(train, &[])).model.save(&folder).unwrap();
        }
        let (found, said) = predict(&folder, rows, &[]);
        assert!(!said.contains("the model was trained on"), "both formats know their types: {said}");
        scores(&found).clone()
    };
    let expected = scores_of(&parquet, &parquet);
    for (train, rows) in [(&arrow, &arrow), (&arrow, &parquet), (&parquet, &arrow)] {
        assert_eq!(scores_of(train, rows), expected);
    }
}

/// CSV and JSON lines have no types: they are read as the model was trained, whether the job names kinds or not.
#[test]
fn rows_of_a_format_without_types_have_the_scores_of_those_with() {
    let kinds = [
        "columns.dense=[{column=\"I1..I13\", transform=\"log1p\"}]",
        "columns.slots=[{column=\"C1..C26\", kind=\"int\"}]",
    ];
    for settings in [&["columns.slots=['C1..C26']"][..], &kinds] {
        let dir = tempfile::tempdir().unwrap();
        let (_, folder) = model(dir.path(), settings);
        let rows = dir.path().join("rows.csv");
        let keep: Vec<String> = (1..=13).map(|i| format!("I{i}")).chain((1..=26).map(|c| format!("C{c}"))).collect();
        let (of_parquet, _) = predict(&folder, &common::parquet(dir.path(), 4000, 300), &["--keep", &keep.join(",")]);
        let mut csv = arrow::csv::Writer::new(File::create(&rows).unwrap());
        csv.write(&of_parquet).unwrap();
        drop(csv);
        let (of_csv, said) = predict(&folder, &rows, &[]);
        let (of_json, said_of_json) = predict(&folder, &as_json_lines(&rows), &[]);
        assert_eq!(scores(&of_json), scores(&of_csv));
        assert_eq!(scores(&of_parquet), scores(&of_csv), "{settings:?}");
        assert!(!said.contains("WARN") && !said_of_json.contains("WARN"), "{said}{said_of_json}");
        // A model of an earlier version does not know what it was trained on.
        let manifest = folder.join("manifest.json");
        let mut old: serde_json::Value = common::read_json(&manifest);
        old["training"].as_object_mut().unwrap().remove("types").unwrap();
        fs::write(&manifest, old.to_string()).unwrap();
        let warning = "the model was trained on Parquet, and these rows are CSV";
        assert_eq!(predict(&folder, &rows, &[]).1.contains(warning), settings.len() == 1);
    }
}

/// CSV of numbers as an object for each row, without its missing values.
fn as_json_lines(csv: &Path) -> PathBuf {
    let text = fs::read_to_string(csv).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let value = |(name, value): (&&str, &str)| (!value.is_empty()).then(|| format!("\"{name}\": {value}"));
    let object = |line: &str| names.iter().zip(line.split(',')).filter_map(value).collect::<Vec<_>>().join(", ");
    let objects: String = lines.map(|line| format!("{{{}}}\n", object(line))).collect();
    let path = csv.with_extension("jsonl");
    fs::write(&path, objects).unwrap();
    path
}
