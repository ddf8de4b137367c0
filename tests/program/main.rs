//! The program from outside: completions, manual pages, `--quiet`, a closed standard output, exit codes, its errors, signals and examples.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "../common/mod.rs"]
mod common;
mod drain;
mod everyday_errors;
mod examples;
mod model_folder;
mod plan;

use std::process::{Command, Output, Stdio};

fn forebay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).env_remove("FOREBAY_LOG").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    forebay(arguments).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("output is UTF-8")
}

#[test]
fn completions_of_every_shell_name_commands_and_options() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&run(&["completions", shell]));
        for word in ["inspect", "launch", "log-format", "quiet"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn every_command_has_a_manual_page() {
    assert!(stdout(&run(&["man"])).contains(".TH forebay 1"));
    let folder = tempfile::tempdir().unwrap();
    // A new account has none of these folders.
    let pages = folder.path().join("man/man1");
    stdout(&run(&["man", pages.to_str().unwrap()]));
    for page in ["forebay", "forebay-train", "forebay-data-inspect", "forebay-completions"] {
        let path = pages.join(format!("{page}.1"));
        assert!(path.is_file(), "{} is missing", path.display());
    }
    let file = pages.join("forebay.1");
    let output = run(&["man", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is a file, expected a folder"), "{output:?}");
}

#[test]
fn arguments_that_make_no_sense_are_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let synth = |more: &[&'static str]| [&["data", "synth", "--rows", "10", "--out", out][..], more].concat();
    let model = ["--model", out];
    for (arguments, words) in [
        (synth(&["--threads", "1025"]), "expected at most 1024"),
        (synth(&["--group-rows", "0"]), "0 is not in 1.."),
        (synth(&["--first-row", "18446744073709551615"]), "the numbers of rows end at 18446744073709551615"),
        (vec!["data", "convert", out, "--out", out, "--threads", "100000"], "expected at most 1024"),
        (vec!["data", "convert", out, "--out", "-"], "expected the name of a folder"),
        (vec!["data", "synth", "--rows", "10", "--out", "-"], "expected the name of a folder"),
        ([&["export", "--to", "-"][..], &model].concat(), "expected the name of a folder"),
        (
            [&["embed", "--out", "-", "--tower", "item", "--data", out][..], &model].concat(),
            "expected the name of a folder",
        ),
        (vec!["plan", "--job-file", "--json"], "cannot be used with"),
    ] {
        let output = forebay(&arguments).current_dir(folder.path()).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{arguments:?}: {output:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{arguments:?}");
    }
}

#[test]
fn quiet_leaves_standard_error_empty_and_prints_the_results() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows");
    let rows = rows.to_str().unwrap();
    let output = run(&["--quiet", "data", "synth", "--rows", "500", "--out", rows]);
    assert!(stdout(&output).starts_with("wrote "), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let model = format!("output.model={}", folder.path().join("model").display());
    let train = ["train", "--set", &format!("data.train={rows}"), "--set", "model.kind=lr", "--set", &model];
    let output = run(&train);
    assert!(!output.stderr.is_empty(), "{output:?}");
    let output = run(&[&train[..], &["-q"]].concat());
    assert!(stdout(&output).contains("trained on 500 rows"), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_closed_standard_output_ends_no_command_with_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows");
    let rows = rows.to_str().unwrap();
    stdout(&run(&["data", "synth", "--rows", "10", "--out", rows]));
    let plan = ["plan", "--set", &format!("data.train={rows}")];
    let (json, job_file) = ([&plan[..], &["--json"]].concat(), [&plan[..], &["--job-file"]].concat());
    let inspect = ["data", "inspect", rows];
    for arguments in [
        &plan[..],
        &json,
        &job_file,
        &inspect,
        &["completions", "zsh"],
        &["man"],
        &["--help"],
        &["train", "-h"],
        &["-V"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = forebay(arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn help_lists_the_exit_codes_and_a_wrong_job_ends_with_2() {
    let help = stdout(&run(&["--help"]));
    for code in ["0 ", "2 ", "3 ", "4 ", "5 ", "130 "] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(code)), "{code} in {help}");
    }
    let output = run(&["plan", "--set", "train.stalenes=1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
