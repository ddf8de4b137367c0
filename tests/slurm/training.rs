//! Training on a real Slurm, through the loss of a node.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::{Slurm, wait_until};

/// More epochs than any test waits for: the run ends when it is drained.
const JOB: &str = r#"
[data]
train = "ROWS"
epochs = 100000
shuffle_rows = 8192
[columns]
label = "label"
dense = ["I1..I13"]
slots = [{ column = "C1..C26", kind = "hex" }]
[model]
kind = "lr"
[train]
batch_rows = 512
staleness = 2
[placement]
lease_seconds = 5
[output]
model = "MODEL"
"#;

fn job(shared: &Path) -> PathBuf {
    let (rows, model, file) = (shared.join("rows"), shared.join("model"), shared.join("job.toml"));
    let mut synth = Command::new(env!("CARGO_BIN_EXE_forebay"));
    assert!(synth.args(["data", "synth", "--rows", "40000", "--out"]).arg(&rows).status().unwrap().success());
    let text = JOB.replace("ROWS", rows.to_str().unwrap()).replace("MODEL", model.to_str().unwrap());
    std::fs::write(&file, text).unwrap();
    file
}

/// The number before `what` in the last line that has it.
fn number(log: &str, what: &str) -> u64 {
    let line = log.lines().rev().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no `{what}` in {log}"));
    let before = line[..line.find(what).unwrap()].trim_end();
    before.rsplit(' ').next().unwrap().replace(',', "").parse().unwrap()
}

#[test]
fn training_goes_on_when_a_node_is_lost_and_its_reader_restarts_elsewhere() {
    let slurm = Slurm::up(5);
    let shared = slurm.shared();
    let run = slurm.submit(
        &job(&shared),
        Path::new(env!("CARGO_BIN_EXE_forebay")),
        &["--readers", "2", "--ps", "2", "--sbatch-reader", "--exclusive"],
    );
    wait_until("rows are trained on", || run.log("ps-0").contains("rows are trained on").then_some(()));
    // One reader is enough for that. The other one must have joined, too, or it never runs on the node that is lost.
    wait_until("reader 0 has joined", || run.log("ps-0").contains("reader 0 joined").then_some(()));
    let reader = |index| slurm.tasks().into_iter().find(|task| task.job == run.readers && task.index == Some(index));
    let lost = reader(0).unwrap().node;
    slurm.kill_node(&lost);

    // The process on the lost node continues, because only its slurmd was killed. The new process takes its rank.
    wait_until("the reader is requeued", || reader(0).filter(|task| task.node != lost));
    slurm.start_requeued_now();
    wait_until("it runs elsewhere", || reader(0).filter(|task| task.state == "RUNNING" && task.node != lost));
    // The old process's output is lost with its node: tests/cluster checks that such a process ends.
    wait_until("it has joined", || (run.log("ps-0").matches("reader 0 joined").count() >= 2).then_some(()));
    let before = number(&run.log("ps-0"), "rows are trained on");
    wait_until("more rows are trained on", || (number(&run.log("ps-0"), "rows are trained on") > before).then_some(()));

    // As a user ends a run early but keeps the model.
    slurm.run("scancel", &["--signal=TERM", &run.trainers.to_string()]);
    wait_until("the model is saved", || run.log("trainer-0").contains("saved ").then_some(()));
    wait_until("no job is left", || slurm.tasks().is_empty().then_some(()));
    let log = run.log("trainer-0");
    // Each window is trained on once: five windows per epoch, of 8,192 rows but for the last.
    // `read` also counts rows that the lost reader had read, and that its successor read again.
    let (trained, delivered) = (number(&log, "rows trained on, 0 rejected"), number(&log, "delivered"));
    assert_eq!(trained, delivered, "{log}");
    assert!(shared.join("model.partial/manifest.json").exists());
}
