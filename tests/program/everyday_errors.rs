//! Mistakes of every day get a message that names the place, in the user's words, and the way out.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow::ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;

use super::common::{self, run};

const COLUMNS: [&str; 2] = ["columns.dense=['x']", "columns.slots=[{ column = 'c', kind = 'int' }]"];

/// Trains an `lr` on `data`, with the columns `label`, `x` and `c`.
fn train(data: &str, settings: &[&str]) -> (Option<i32>, String) {
    let train = format!("data.train={data}");
    let mut args = vec!["train", "--set", &train, "--set", "model.kind=lr"];
    COLUMNS.iter().chain(settings).for_each(|setting| args.extend(["--set", *setting]));
    run(&args)
}

/// A run that must be refused as the user's fault, with all of `words` in the message.
#[track_caller]
fn refused(data: &str, settings: &[&str], words: &[&str]) {
    common::exits(2, train(data, settings), words);
}

fn batch(labels: &[i64]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 3] = [
        ("label", Arc::new(Int64Array::from(labels.to_vec()))),
        ("x", Arc::new(Float64Array::from(vec![0.5; labels.len()]))),
        ("c", Arc::new(Int64Array::from_iter_values(0..labels.len() as i64))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// A Parquet file with a row group for each list of labels.
fn parquet(path: &Path, groups: &[&[i64]]) {
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch(&[]).schema(), None).unwrap();
    for labels in groups {
        writer.write(&batch(labels)).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn a_bad_value_is_named_with_its_file_and_its_row_or_line() {
    let dir = tempfile::tempdir().unwrap();
    let groups: [&[i64]; 3] = [&[0, 1, 0, 1], &[1, 0, 1, 0], &[0, 2, 0]];
    for kind in ["parquet", "arrow", "csv", "jsonl"] {
        let folder = dir.path().join(kind);
        fs::create_dir(&folder).unwrap();
        for (name, groups) in [("a", &groups[..2]), ("b", &groups[..])] {
            let path = folder.join(format!("{name}.{kind}"));
            let labels = groups.iter().copied().flatten();
            match kind {
                "parquet" => parquet(&path, groups),
                "arrow" => {
                    let mut writer = FileWriter::try_new(File::create(&path).unwrap(), &batch(&[]).schema()).unwrap();
                    groups.iter().for_each(|labels| writer.write(&batch(labels)).unwrap());
                    writer.finish().unwrap();
                }
                "csv" => {
                    let lines: String = labels.map(|label| format!("{label},0.5,7\n")).collect();
                    fs::write(&path, format!("label,x,c\n{lines}")).unwrap();
                }
                _ => {
                    let lines = labels.map(|label| format!("{{\"label\": {label}, \"x\": 0.5, \"c\": 7}}\n"));
                    fs::write(&path, lines.collect::<String>()).unwrap();
                }
            }
        }
        let place = match kind {
            "csv" => "b.csv`, line 11: ",
            "jsonl" => "b.jsonl`, line 10: ",
            "arrow" => "b.arrow`, row 9 (counted from 0): ",
            _ => "b.parquet`, row 9 (counted from 0): ",
        };
        refused(folder.to_str().unwrap(), &[], &[place, "`label` is 2", "(stage `parse`)"]);
        // The same place in the rejected rows, as docs/data.md has them.
        let bad = dir.path().join(format!("bad-{kind}"));
        let write_to = format!("data.on_bad_row={{ write_to = {:?} }}", bad.to_str().unwrap());
        common::exits(0, train(folder.to_str().unwrap(), &[&write_to]), &[]);
        let written = fs::read_to_string(bad.join("parse-0.jsonl")).unwrap();
        let row: serde_json::Value = serde_json::from_str(written.trim()).unwrap();
        assert!(row["file"].as_str().unwrap().ends_with(&format!("b.{kind}")), "{written}");
        let number = match kind {
            "csv" => ("line", 11),
            "jsonl" => ("line", 10),
            _ => ("row", 9),
        };
        assert_eq!(row[number.0], number.1, "{written}");
        assert_eq!(row["reason"], "label is neither 0 nor 1", "{written}");
        assert_eq!(row["values"]["c"], if kind == "parquet" || kind == "arrow" { "1" } else { "7" }, "{written}");
    }
}

/// A bug: the only advice was to leave such rows out, which are all rows of a set of ratings.
#[test]
fn a_value_that_an_option_of_its_column_makes_usable_is_told_with_the_option() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let data = path.to_str().unwrap();
    for (row, words) in [
        ("4,0.5,7", &["column `label` is 4, expected 0 or 1; columns.label may say which values are 1", ">= 4"][..]),
        ("-1,0.5,7", &["column `label` is -1, expected 0 or 1; columns.label may say", "positive = [...]"]),
        ("1,NaN,7", &["column `x` is NaN, expected a finite number; `fill` of the dense feature replaces NaN"]),
        (
            "1,NA,7",
            &["found `NA`, expected nothing or a number (if it means a missing value, set data.csv.nulls to [\"NA\"])"],
        ),
        ("1,\\N,7", &["set data.csv.nulls to [\"\\\\N\"])"]),
    ] {
        fs::write(&path, format!("label,x,c\n0,0.5,7\n{row}\n")).unwrap();
        refused(data, &[], &[words, &["line 3"]].concat());
    }
    fs::write(&path, "label,x,c\n0,oops,7\n").unwrap();
    let (_, said) = train(data, &[]);
    assert!(said.contains("line 2") && !said.contains("split 0") && !said.contains("data.csv.nulls"), "{said}");
    // The advice that Parquet gave, and CSV did not.
    fs::write(&path, "label,x,c\nno,0.5,7\n").unwrap();
    refused(
        data,
        &[],
        &["(label)", "found `no`, expected nothing or a number (text may be a slot, or a label with `positive`)"],
    );
}

/// A bug: the advice was to leave out the rows, and soft labels looked like a regression.
#[test]
fn labels_that_are_missing_or_no_probabilities_are_told_what_their_options_are_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let data = path.to_str().unwrap();
    fs::write(&path, "label,like,x,c\n0,1,0.5,7\n1,,0.5,7\n").unwrap();
    let labels = "columns.label=['label', 'like']";
    refused(data, &["model.kind=mmoe", labels], &["line 3", "column `like` has no value", "mask_missing = true }"]);
    fs::write(&path, "label,like,x,c\n0.5,1,0.5,7\n3.5,1,0.5,7\n").unwrap();
    let soft = "columns.label={ column = 'label', soft = true }";
    refused(
        data,
        &[soft],
        &["line 3", "`label` is 3.5", "probabilities from 0 to 1", "no regression", "positive = \">= 4\""],
    );
}

/// A bug: the advice was to write the column `I1` into some of the files.
#[test]
fn a_first_job_without_features_is_told_to_name_the_columns_of_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    fs::write(&path, "label,x,c\n0,0.5,7\n1,0.5,8\n").unwrap();
    let train = format!("data.train={}", path.display());
    let run_with = |columns: &[&str]| {
        let mut args = vec!["train", "--set", &train, "--set", "model.kind=lr"];
        columns.iter().for_each(|setting| args.extend(["--set", *setting]));
        common::exits(2, run(&args), &["name the columns of your data (`forebay data inspect` prints them)"])
    };
    let both = run_with(&[]);
    assert!(
        both.contains("no column `I1`") && both.contains("columns.dense and columns.slots have their defaults"),
        "{both}"
    );
    assert!(!both.contains("columns.optional"), "{both}");
    let slots = run_with(&["columns.dense=['x']"]);
    assert!(slots.contains("no column `C1`") && slots.contains("columns.slots has its default"), "{slots}");
    // Columns that the job names get the other advice.
    refused(path.to_str().unwrap(), &["columns.slots=['I1']"], &["add --set 'columns.optional=[\"I1\"]'"]);
}

/// A bug: the advice was to write the ids of `data.eval` as numbers, too.
#[test]
fn ids_that_were_written_as_numbers_are_told_so_whatever_the_rows_to_evaluate_on_have() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, eval) = (dir.path().join("rows.parquet"), dir.path().join("eval.parquet"));
    parquet(&eval, &[&[0, 1]]);
    let ids: ArrayRef = Arc::new(Float64Array::from(vec![Some(7.0), None]));
    let columns = batch(&[0, 1]).columns().to_vec();
    let floats = [("label", columns[0].clone()), ("x", columns[1].clone()), ("c", ids)];
    let floats = RecordBatch::try_from_iter_with_nullable(floats.map(|(name, array)| (name, array, true))).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(&rows).unwrap(), floats.schema(), None).unwrap();
    writer.write(&floats).unwrap();
    writer.close().unwrap();
    let (data, eval) = (rows.to_str().unwrap(), format!("data.eval={}", eval.display()));
    for slots in ["columns.slots=['c']", COLUMNS[1]] {
        for settings in [&[slots][..], &[slots, &eval]] {
            refused(data, settings, &["column `c` is Float64", ".astype(\"Int64\")"]);
        }
    }
}

/// A bug: nothing said which column it was, and what stood there.
#[test]
fn rows_to_evaluate_on_that_are_all_bad_are_told_with_the_column_and_the_value() {
    let dir = tempfile::tempdir().unwrap();
    let [rows, eval] = ["rows.csv", "eval.csv"].map(|name| dir.path().join(name));
    fs::write(&rows, "label,x,c\n0,0.5,7\n1,0.1,7\n").unwrap();
    fs::write(&eval, "label,x,c\n0,12%,7\n1,11%,7\n").unwrap();
    let setting = format!("data.eval={}", eval.display());
    let words =
        ["2 rows were rejected, all because of this: not a number", "eval.csv`: column 2 (x): found `12%`, expected"];
    refused(rows.to_str().unwrap(), &[&setting], &words);
    fs::write(&eval, "label,x,c\n0,oops,7\n1,1\n").unwrap();
    refused(rows.to_str().unwrap(), &[&setting], &["column 2 (x): ", "found `oops`"]);
}

/// A bug: with a list among the first lines all labels counted as lists, and the error named no line.
#[test]
fn a_label_that_is_a_list_is_a_bad_row() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.jsonl");
    let line = |label: &str| format!("{{\"label\": {label}, \"x\": 0.5, \"c\": 7}}\n");
    fs::write(&rows, [line("0"), line("[1]"), line("1")].concat()).unwrap();
    let path = rows.to_str().unwrap();
    refused(path, &[], &["rows.jsonl`, line 2", "found `[1]` in `label`, expected null or a number"]);
    common::exits(0, train(path, &["data.on_bad_row=skip"]), &["1 rejected (not one value)"]);
}

/// A bug: nothing said why the AUC was .5. pandas writes `79.0` for 79 if a value of the column is missing.
#[test]
fn rows_with_values_in_another_spelling_than_in_the_training_are_told_when_they_are_scored() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    for (name, rows, end) in [("rows.csv", 200, ""), ("pandas.csv", 200, ".0"), ("few.csv", 20, ".0")] {
        let lines: String = (0..rows).map(|i| format!("{},0.5,{}{end}\n", i % 2, i % 20)).collect();
        fs::write(at(name), format!("label,x,c\n{lines}")).unwrap();
    }
    let words = "in these 200 rows no value of `c` has weights in the model, so they do not count in the scores";
    let settings = [format!("data.eval={}", at("pandas.csv")), format!("output.model={}", at("model"))];
    let settings = ["columns.slots=['c']", &settings[0], &settings[1]];
    common::exits(0, train(&at("rows.csv"), &settings), &[words]);
    let every = [&settings[..], &["evaluation.every={ epochs = 1 }", "data.epochs=3"]].concat();
    let said = common::exits(0, train(&at("rows.csv"), &every), &["of 3 evaluations"]);
    assert_eq!(said.matches(words).count(), 1, "each evaluation said it: {said}");
    let eval = |rows: &str| run(&["eval", "--model", &at("model"), "--data", &at(rows)]);
    common::exits(0, eval("pandas.csv"), &[words]);
    let out = at("scores");
    common::exits(0, run(&["predict", "--model", &at("model"), "--data", &at("pandas.csv"), "--out", &out]), &[words]);
    for rows in ["rows.csv", "few.csv"] {
        let said = common::exits(0, eval(rows), &[]);
        assert!(!said.contains("has weights"), "{rows}: {said}");
    }
    let inspect = run(&["data", "inspect", &at("pandas.csv")]);
    common::exits(0, inspect, &["c: 200 values are written as `0.0`, not as `0`"]);
}

/// A bug: the log, the report and the error said the same.
#[test]
fn the_fault_of_a_run_is_said_once_and_last() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.csv").display().to_string();
    fs::write(&rows, "label,c\n0,7\n1,7\n").unwrap();
    let (code, text) = train(&rows, &[]);
    let last = text.trim_end().lines().next_back().unwrap();
    assert!(code == Some(2) && last.starts_with("error: ") && last.contains("has no column `x`"), "{code:?} {text}");
    assert!(!text.contains("train: failed after "), "a report of no rows: {text}");
    assert_eq!(text.matches("has no column `x`").count(), 1, "{text}");
    fs::write(&rows, "label,x,c\n0,1,7\n1,oops,7\n").unwrap();
    let (code, report) = train(&rows, &[]);
    assert!(code == Some(2) && report.contains("train: failed after "), "{code:?} {report}");
    fs::write(&rows, "label,c\n0,7\n1,7\n").unwrap();
    let data = format!("data.train={rows}");
    let mut quiet = vec!["train", "-q", "--set", &data, "--set", "model.kind=lr"];
    COLUMNS.iter().for_each(|setting| quiet.extend(["--set", *setting]));
    let text = common::exits(2, run(&quiet), &[]);
    // Without output.model it also warns.
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" WARN ")).collect();
    assert_eq!(lines, [last]);
}

/// A bug: a full disk under the files of bad rows ended the training.
#[test]
fn a_disk_of_bad_rows_that_is_full_ends_no_command() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [rows, model, scores, bad] = ["rows.csv", "model", "scores", "bad"].map(path);
    fs::write(&rows, "label,x,c\n0,0.5,7\n2,0.5,7\n1,oops,7\n1,0.5,7\n").unwrap();
    fs::create_dir(&bad).unwrap();
    for file in ["parse-0.jsonl", "rejected.tsv"] {
        std::os::unix::fs::symlink("/dev/full", format!("{bad}/{file}")).unwrap();
    }
    let write_to = format!("data.on_bad_row={{ write_to = {bad:?} }}");
    let ran = train(&rows, &[&write_to, &format!("output.model={model}")]);
    let said = common::exits(0, ran, &["trained on 2 rows", "; 2 bad rows could not be written to the file of bad"]);
    for file in ["parse-0.jsonl", "rejected.tsv"] {
        let warning = format!("cannot write bad rows to `{bad}/{file}`: the disk is full");
        assert_eq!(said.matches(&warning).count(), 1, "{said}");
    }
    let of_model =
        |command: &[&str]| run(&[command, &["--model", &model, "--data", &rows, "--set", &write_to]].concat());
    common::exits(0, of_model(&["eval"]), &["evaluation, 2 bad rows could not be written to the file of bad rows"]);
    // A prediction needs no label.
    let predict = of_model(&["predict", "--out", &scores]);
    common::exits(0, predict, &["\n1 bad row could not be written to the file of bad"]);
}

/// A bug: `1e400` was said to be infinite, although the user had written a number.
#[test]
fn a_number_of_text_that_no_float_holds_is_said_to_be_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let (csv, json) = (dir.path().join("rows.csv"), dir.path().join("rows.jsonl"));
    for (large, shown) in [("1e400", "inf"), ("-1e400", "-inf")] {
        fs::write(&csv, format!("label,x,c\n0,0.5,7\n1,{large},7\n1,1e300,7\n")).unwrap();
        let line = |label: u8, x: &str| format!("{{\"label\": {label}, \"x\": {x}, \"c\": 7}}\n");
        fs::write(&json, [line(0, "0.5"), line(1, large), line(1, "1e300")].concat()).unwrap();
        let said = format!("column `x` is {shown} (or a number too large for a float), expected a finite number");
        for (file, place) in [(&csv, "line 3: "), (&json, "line 2: ")] {
            let path = file.to_str().unwrap();
            let logs = "columns.dense=[{ column = 'x', transform = 'log1p' }]";
            refused(path, &[logs], &[place, &said]);
            refused(path, &["columns.dense=[{ column = 'x', fill = 1 }]"], &[&said]);
            let bad = tempfile::tempdir().unwrap();
            let write_to = format!("data.on_bad_row={{ write_to = {:?} }}", bad.path().to_str().unwrap());
            common::exits(0, train(path, &[logs, &write_to]), &[]);
            let row: serde_json::Value = common::read_json(bad.path().join("parse-0.jsonl"));
            assert_eq!(row["detail"], said, "{path}");
        }
    }
}

/// A small file of rows makes few steps of the default batch, and its model was as good as untrained without a word.
#[test]
fn a_training_of_few_steps_says_how_to_get_more() {
    let dir = tempfile::tempdir().unwrap();
    let (path, model) = (dir.path().join("rows.csv"), dir.path().join("model"));
    fs::write(&path, format!("label,x,c\n{}", "0,0.5,7\n1,0.1,8\n".repeat(150))).unwrap();
    let data = path.to_str().unwrap();
    let few = "which may be too few: a smaller train.batch_rows";
    let output = format!("output.model={}", model.display());
    let hint = format!("INFO the training had 1 step, {few} (2,048) or more data.epochs (1) gives more");
    common::exits(0, train(data, &[&output]), &[&hint]);
    let from = format!("train.from={}", model.display());
    for settings in [["train.batch_rows=3", "train.threads=1"], ["train.threads=1", &from]] {
        let said = common::exits(0, train(data, &settings), &["trained on 300 rows"]);
        assert!(!said.contains(few), "{settings:?}: {said}");
    }
    let train = format!("data.train={data}");
    let mut settings = vec![train.as_str(), "model.kind=lr"];
    settings.extend(COLUMNS);
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let json = common::forebay(&[&["train", "--log-format", "json"][..], &settings].concat()).output().unwrap();
    let [out, err] = [json.stdout, json.stderr].map(|text| String::from_utf8(text).unwrap());
    let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(err.contains(few) && !out.contains(few) && out.lines().chain(err.lines()).all(is_json), "{out}{err}");
}

/// A bug: instead of the file the message had `epoch 0, split 0, row 0`.
#[test]
fn a_column_of_a_wrong_type_is_named_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    parquet(&path, &[&[0, 1]]);
    let columns = ["columns.dense=['c']", "columns.slots=[{ column = 'x', kind = 'int' }]"];
    let words = ["rows.parquet`: column `x` is Float64, expected integers", "(stage `parse`)"];
    refused(path.to_str().unwrap(), &columns, &words);
}

#[test]
fn a_folder_for_rejected_rows_without_a_name_is_refused() {
    refused("nowhere.parquet", &["data.on_bad_row={ write_to = '' }"], &["write_to is empty", "a local folder"]);
}

/// A bug: the next run read the rejected rows.
/// A bug: the report was said to be in a folder without a name, which is read as a whole.
#[test]
fn a_path_that_is_empty_is_refused_by_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    for field in ["data.train", "data.eval", "output.model", "checkpoint.to", "train.from"] {
        let set = format!("{field}=");
        let (code, text) = run(&["train", "--set", &set, "--report", report.to_str().unwrap()]);
        assert!(code == Some(2) && text.contains(&format!("{field} is empty")), "{text}");
        assert!(!report.exists(), "{text}");
    }
}

#[test]
fn a_folder_for_rejected_rows_among_the_rows_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for name in ["rows", "test"] {
        fs::create_dir(folder(name)).unwrap();
        fs::write(format!("{}/a.csv", folder(name)), "label,x,c\n1,0.5,7\n").unwrap();
    }
    let eval = format!("data.eval={}", folder("test"));
    for bad in ["rows", "rows/bad", "test"] {
        let write_to = format!("data.on_bad_row={{ write_to = {:?} }}", folder(bad));
        refused(&folder("rows"), &[&eval, &write_to], &["write_to is", &folder(bad), "the bad rows for rows"]);
    }
}

#[test]
fn labels_that_are_all_the_same_are_told_once_with_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    parquet(&path, &[&[0; 40], &[0; 30]]);
    let data = path.to_str().unwrap();
    let model = dir.path().join("model");
    let output = format!("output.model={}", model.display());
    let text = common::exits(0, train(data, &[&output, "train.batch_rows=16"]), &[]);
    let words = "all 70 rows have label 0 (column `label`)";
    assert_eq!(text.matches(words).count(), 1, "{text}");
    let ran = train(data, &["columns.label={ column = 'label', positive = '>= 3' }"]);
    common::exits(0, ran, &["all 70 rows have label 0 (column `label`, positive = \">= 3\")"]);
    let ran = train(data, &["columns.label={ column = 'label', positive = ['1', '7'] }"]);
    common::exits(0, ran, &["all 70 rows have label 0 (column `label`, positive = [\"1\", \"7\"])"]);
    let (code, text) = run(&["eval", "--model", model.to_str().unwrap(), "--data", data]);
    assert_eq!((code, text.matches(words).count()), (Some(0), 1), "{text}");
    // There is no warning if rows have both labels.
    parquet(&path, &[&[0; 40], &[0, 1]]);
    let (code, text) = train(data, &[&output]);
    assert!(code == Some(0) && !text.contains("rows have label"), "{text}");
}

#[test]
fn a_value_that_is_never_positive_is_told_where_others_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let lines: String = ["click", "view", "view"].iter().map(|label| format!("{label},0.5,7\n")).collect();
    fs::write(&path, format!("label,x,c\n{lines}")).unwrap();
    let label = "columns.label={ column = 'label', positive = ['click', 'buy', 'share'] }";
    let text = common::exits(0, train(path.to_str().unwrap(), &[label]), &[]);
    let words = "columns.label: no row of 3 has `buy`, `share` in column `label`";
    assert_eq!(text.matches(words).count(), 1, "{text}");
}

#[test]
fn weights_that_are_all_zero_are_told_once_with_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let train = |last: &str| {
        let lines = "1,0.5,7,0\n0,0.5,8,0\n".repeat(20);
        fs::write(&path, format!("label,x,c,w\n{lines}{last}")).unwrap();
        common::exits(0, train(path.to_str().unwrap(), &["columns.weight=w", "train.batch_rows=16"]), &[])
    };
    let (words, text) = ("columns.weight: all 40 rows have weight 0 (column `w`)", train(""));
    assert_eq!(text.matches(words).count(), 1, "{text}");
    assert!(!train("1,0.5,7,0.25\n").contains("have weight 0"));
}

#[test]
fn weights_far_from_1_on_average_are_told_once_with_the_mean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let train = |weight: &str| {
        let lines = format!("1,0.5,7,{weight}\n0,0.6,8,{weight}\n").repeat(20);
        fs::write(&path, format!("label,x,c,w\n{lines}")).unwrap();
        common::exits(0, train(path.to_str().unwrap(), &["columns.weight=w", "train.batch_rows=16"]), &[])
    };
    let text = train("250");
    let words = "columns.weight: the weights of a sample of the rows are 250.000 on average (column `w`)";
    assert_eq!(text.matches(words).count(), 1, "{text}");
    assert!(text.contains("divide the column by its mean"), "{text}");
    assert!(!train("3").contains("on average"));
}

/// A bug: such a training said nothing.
#[test]
fn features_without_any_value_are_told_once_with_their_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let train = |lines: &str| {
        fs::write(&path, format!("label,x,c,d\n{}", lines.repeat(30))).unwrap();
        let slots = "columns.slots=['c', 'd']";
        common::exits(0, train(path.to_str().unwrap(), &[slots, "train.batch_rows=16"]), &[])
    };
    let text = train("1,,,a\n0,,,b\n");
    for words in [
        "columns.slots: no row of 60 has a value of `c`, so",
        "columns.dense: no row of a sample of 60 has a value of `x`, so",
    ] {
        assert_eq!(text.matches(words).count(), 1, "{text}");
    }
    assert!(!train("1,,,a\n0,0.5,7,b\n").contains("has a value of"));
}

#[test]
fn large_dense_features_are_told_once_with_their_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let lines: String = (0..60).map(|i| format!("{},{},7\n", i % 2, if i % 7 == 0 { "1e30" } else { "2" })).collect();
    fs::write(&path, format!("label,x,c\n{lines}")).unwrap();
    let data = path.to_str().unwrap();
    let sgd = "train.optimizer={ kind = \"sgd\", lr = 1e-12 }";
    let raw = "columns.dense=[{ column = 'x', transform = 'none' }]";
    let (_, text) = train(data, &[raw, sgd, "train.batch_rows=16", "data.read_rows=20", "data.epochs=2"]);
    let words = "columns.dense: in a batch of 20 rows read, dense features are large";
    assert_eq!(text.matches(words).count(), 1, "{text}");
    assert!(text.contains("`x` (mean 1.5e29, standard deviation 3.6e29, the largest 1.0e30)"), "{text}");
    assert!(text.contains("give transform = \"log1p\" to `x`"), "{text}");
    let clipped = "columns.dense=[{ column = 'x', transform = 'none', clip = { max = 5 } }]";
    let text = common::exits(0, train(data, &[clipped]), &[]);
    assert!(!text.contains("dense features are large"), "{text}");
}

#[test]
fn dense_features_far_from_0_are_told_if_there_are_enough_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.csv");
    let train = |rows: usize| {
        let lines: String = (0..rows).map(|i| format!("{},{},{},7\n", i % 2, 18 + i % 8, i % 8)).collect();
        fs::write(&path, format!("label,age,visits,c\n{lines}")).unwrap();
        let raw = "columns.dense=[{ column = 'age', transform = 'none' }, { column = 'visits', transform = 'none' }]";
        common::exits(0, train(path.to_str().unwrap(), &[raw]), &[])
    };
    let (text, words) = (train(1200), "far from 0 for their spread");
    assert_eq!(text.matches(words).count(), 1, "{text}");
    let age = "to `age` (mean 21.50, standard deviation 2.29, the largest 25.00)\n";
    assert!(text.contains("give scale = \"z_score\", for which `forebay data stats JOB --write`"), "{text}");
    assert!(text.contains(age), "{text}");
    assert!(!train(900).contains(words));
}

/// A bug: `data inspect` looked at the first bytes of a file, and a training only at its name.
#[test]
fn a_training_and_its_model_read_files_whose_first_bytes_tell_their_format() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let json: String = (0..40).map(|i| format!("{{\"label\": {}, \"x\": 0.5, \"c\": 7}}\n", i % 2)).collect();
    fs::write(at("part-0"), &json).unwrap();
    fs::write(at("rows.txt"), &json).unwrap();
    parquet(Path::new(&at("part-1")), &[&[0, 1, 0, 1]]);
    let output = format!("output.model={}", at("model"));
    common::exits(0, train(&at("part-0"), &[&output]), &["trained on 40 rows"]);
    for (data, rows) in [("rows.txt", "40 rows"), ("part-1", "4 rows")] {
        common::exits(0, run(&["eval", "--model", &at("model"), "--data", &at(data)]), &[rows]);
    }
    common::exits(0, train(&at("part-1"), &[&output]), &["trained on 4 rows"]);
    // A job that says another format says what to write.
    fs::write(at("rows.csv"), "label,x,c\n1,0.5,7\n0,0.5,8\n").unwrap();
    for format in ["parquet", "criteo"] {
        let setting = format!("data.format={format}");
        refused(&at("rows.csv"), &[&setting], &["rows.csv` is CSV by its name", "set data.format to \"csv\""]);
    }
    common::exits(0, train(&at("rows.csv"), &["data.format=csv"]), &["trained on 2 rows"]);
}

#[test]
fn a_run_that_would_write_no_checkpoint_is_refused() {
    for setting in ["checkpoint.rows=1000", "checkpoint.every=30s"] {
        refused("nowhere.parquet", &[setting], &["but checkpoint.to is not set", "set checkpoint.to to a folder"]);
    }
}

#[test]
fn what_is_named_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    parquet(&path, &[&[0, 1]]);
    let (data, folder) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
    let twice = format!("['{data}', '{folder}/*.parquet']");
    refused(&twice, &[], &["rows.parquet` is named twice", "data.epochs"]);
    refused(&format!("['{folder}', '{folder}/./']"), &[], &["is named twice"]);
    refused(data, &["columns.dense=['x', 'x']"], &["columns.dense has `x` twice", "leave one out"]);
    let slots = "columns.slots=['c', { column = 'c', kind = 'int', key_space = 'c2' }]";
    let (code, text) = train(data, &[slots]);
    assert_eq!(code, Some(0), "other keys of the same column: {text}");
    refused(data, &["columns.slots=['c', 'c']"], &["columns.slots has `c` twice", "key_space"]);
}

#[test]
fn fields_of_a_model_without_a_tower_are_refused() {
    for (kind, field, value) in [
        ("lr", "norm", "layer"),
        ("lr", "dropout", "0.5"),
        ("fm", "norm", "layer"),
        ("fm", "dropout", "0.5"),
        ("fm", "activation", "gelu"),
        ("wide_deep", "linear", "false"),
        ("deep_fm", "fm", "false"),
    ] {
        let settings = [format!("model.kind={kind}"), format!("model.{field}={value}")];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        refused("nowhere.parquet", &settings, &[&format!("model.{field} is for"), "\"custom\"", "leave it out"]);
    }
}

#[test]
fn fields_of_a_wrong_type_are_told_in_plain_words() {
    for (setting, words) in [
        ("columns.slots='c'", &["columns.slots", "a list"][..]),
        ("columns.label=7", &["a column name"]),
        ("data.on_bad_row='drop'", &["on_bad_row", "\"fail\", \"skip\" or { write_to = \"folder\" }"]),
        ("data.on_bad_row={ write = 'x' }", &["\"fail\", \"skip\" or { write_to = \"folder\" }"]),
        ("train.optimizer='adam'", &["{ kind = \"adam\""]),
        ("data.train={ path = 'x' }", &["a path or a list of paths"]),
        ("data=7", &["data", "fields"]),
        ("model.hidden=400", &["model.hidden", "found the number 400, expected a list"]),
        ("train.batch_rows='many'", &["train.batch_rows", "found the text \"many\", expected a whole number"]),
    ] {
        let text = common::exits(2, train("nowhere.parquet", &[setting]), words);
        for word in ["invalid type: map", "untagged enum", "struct ", "sequence", "usize"] {
            assert!(!text.contains(word), "{setting}: {word:?} is in: {text}");
        }
    }
}

#[test]
fn numbers_as_categories_are_told_what_buckets_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.parquet");
    parquet(&path, &[&[0, 1]]);
    let words = ["`x`", "Float64", "log_bucket", "boundaries", "quantiles"];
    refused(path.to_str().unwrap(), &["columns.dense=[]", "columns.slots=['x']"], &words);
}

#[test]
fn a_label_that_is_a_feature_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let rows = dir.path().join("rows.parquet");
    parquet(&rows, &[&[0, 1, 0, 1]]);
    let rows = rows.to_string_lossy();
    let warning = "`label` is a label and a feature, too";
    let (code, text) = train(&rows, &[]);
    assert!(code == Some(0) && !text.contains(warning), "{text}");
    for feature in ["columns.dense=['x', 'label']", "columns.slots=[{ column = 'label', kind = 'int' }]"] {
        let (code, text) = train(&rows, &[feature]);
        assert!(code == Some(0) && text.contains(warning), "{feature}: {text}");
    }
}

#[test]
fn what_a_run_writes_is_refused_among_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, at) = (dir.path().join("rows"), |name: &str| dir.path().join(name).to_string_lossy().into_owned());
    fs::create_dir(&rows).unwrap();
    parquet(&rows.join("a.parquet"), &[&[0, 1, 0, 1]]);
    let model = |at: &str| format!("output.model={at}");
    refused(&at("rows"), &[&model(&at("rows/model"))], &["output.model is", "in", "data.train reads as a whole"]);
    let to = format!("checkpoint.to={}", at("rows/checkpoints"));
    refused(&at("rows"), &[&model(&at("model")), &to], &["checkpoint.to is", "data.train reads as a whole"]);
    let eval = format!("data.eval={}", at("rows"));
    refused(&at("rows/a.parquet"), &[&model(&at("rows/model")), &eval], &["data.eval reads as a whole"]);
    for (argument, place) in [("--report", "rows/report"), ("--report", "rows/r.json"), ("--tensorboard", "rows/board")]
    {
        let data = format!("data.train={}", at("rows"));
        for command in ["train", "launch"] {
            let (code, text) = run(&[command, "--set", &data, argument, &at(place)]);
            let words = format!("{argument} is {}, in {}, which data.train reads as a whole", at(place), at("rows"));
            assert!(code == Some(2) && text.contains(&words), "{command}: {text}");
        }
    }
    assert_eq!(fs::read_dir(&rows).unwrap().count(), 1, "something was left among the rows");
    // A glob names its files, and a folder beside the rows is none of them.
    for (data, model_at) in [("rows", "rows-model"), ("rows/*.parquet", "rows/model")] {
        common::exits(0, train(&at(data), &[&model(&at(model_at))]), &[]);
    }
}

/// A bug: files whose metadata could not be read were left out, and the run trained on the others.
#[test]
fn a_folder_that_may_be_listed_and_not_searched_is_an_error_that_names_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("day=2");
    for day in ["day=1", "day=2"] {
        fs::create_dir(dir.path().join(day)).unwrap();
        parquet(&dir.path().join(day).join("a.parquet"), &[&[0, 1, 0, 1]]);
    }
    let mode = |bits| fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(bits)).unwrap();
    mode(0o644);
    let root = dir.path().display();
    for (data, filter) in [
        (root.to_string(), None),
        (root.to_string(), Some("data.where=day >= 1")),
        (format!("{root}/day=2"), None),
        (format!("{root}/**/*.parquet"), None),
    ] {
        let train = format!("data.train={data}");
        let mut args = vec!["train", "--set", &train, "--set", "model.kind=lr"];
        COLUMNS.into_iter().chain(filter).for_each(|setting| args.extend(["--set", setting]));
        let Some(mut command) = common::bound_by_modes(&common::forebay(&args)) else { return };
        common::exits(2, common::ended(&mut command), &["day=2/a.parquet", "Permission denied"]);
    }
    mode(0o755);
}
