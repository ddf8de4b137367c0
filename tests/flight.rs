//! A stock Flight client looks into a run: `examples/flight_client.py`, as users run it.
//!
//! Needs pyarrow in `.tools/python` (`make setup-python`).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests block their own threads")]

#[path = "common/address.rs"]
mod address;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use address::free_address;

/// A process of the run, killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn forebay(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn client(folder: &Path, more: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(".tools/python/bin/python");
    assert!(python.exists(), "pyarrow is not there: make setup-python");
    let script = root.join("examples/flight_client.py");
    Command::new(python).arg(script).args(more).current_dir(folder).output().unwrap()
}

/// Starts one ps and one trainer over more rows than they train in the test. Returns them and the coordinator's
/// address.
fn run(folder: &Path) -> (Vec<Process>, String) {
    let made = forebay(folder).args(["data", "synth", "--rows", "20000", "--out", "rows"]).status().unwrap();
    assert!(made.success());
    std::fs::write(folder.join("token"), "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(folder.join("token"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let address = free_address().to_string();
    let role = |role: &str| {
        let mut command = forebay(folder);
        command.args(["role", role, "--token-file", "token", "--coordinator", &address]);
        for setting in
            ["data.train=rows", "data.epochs=1000000", "model.kind=lr", "placement.ps=1", "train.batch_rows=512"]
        {
            command.args(["--set", setting]);
        }
        command
    };
    let processes = vec![
        Process(role("ps").args(["--listen", &address]).spawn().unwrap()),
        Process(role("trainer").spawn().unwrap()),
    ];
    (processes, address)
}

#[test]
fn pyarrow_lists_tables_reads_rows_and_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let (processes, address) = run(folder.path());
    let deadline = Instant::now() + Duration::from_secs(120);
    let said = loop {
        let output = client(folder.path(), &[&address, "--token-file", "token"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // The script asks for the phase first: rows alone do not say that the run had begun when it did.
        if output.status.success() && said.contains("phase \"running\"") && said.contains("key ") {
            break said;
        }
        assert!(Instant::now() < deadline, "{said}{}", String::from_utf8_lossy(&output.stderr));
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(said.contains("table embedding:") && said.contains(" in 1 shard here"), "{said}");
    assert_eq!(said.matches(" ... 1 weight\n").count(), 3, "three keys, of one linear weight each: {said}");

    // A key without a row reads as zeros, and reading it creates no row.
    let unseen = client(folder.path(), &[&address, "--token-file", "token", "--keys", "12345"]);
    assert!(String::from_utf8_lossy(&unseen.stdout).contains("key 12345: [0.0] ... 1 weight\n"), "{unseen:?}");

    let stranger = client(folder.path(), &[&address]);
    let why = String::from_utf8_lossy(&stranger.stderr);
    assert!(!stranger.status.success() && why.contains("the server asks for a token"), "{why}");
    drop(processes);
}
