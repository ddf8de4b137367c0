//! A line with a delay, for kernels without `tc netem`: a process of `scripts/wire.rs`, which is compiled once.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Two network cards and the process between them. Dropping it removes all three.
pub(crate) struct Wire {
    process: Child,
    says: BufReader<ChildStdout>,
    delay_file: PathBuf,
    delay_ms: u32,
}

impl Wire {
    /// A card `outer` in the namespace that `enter`, given a program, runs it in, and a card `inner` in `namespace`.
    pub(crate) fn start(enter: &mut Command, namespace: &str, outer: &str, inner: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let delay_file = folder().join(format!("delay-{}-{number}", std::process::id()));
        std::fs::write(&delay_file, "0").expect("the tests' folder can be written");
        enter.arg(program()).args(["tap", namespace, outer, inner]).arg(&delay_file);
        let mut process = enter.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the wire starts");
        let says = BufReader::new(process.stdout.take().expect("asked for"));
        let mut wire = Self { process, says, delay_file, delay_ms: 0 };
        wire.wait_for("ready");
        wire
    }

    /// Sets the delay of every packet to `inner`.
    pub(crate) fn delay(&mut self, ms: u32) {
        if ms != self.delay_ms {
            std::fs::write(&self.delay_file, ms.to_string()).expect("the tests' folder can be written");
            self.wait_for(&format!("delay {ms}"));
            self.delay_ms = ms;
        }
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim_end() != word {
            line.clear();
            let length = self.says.read_line(&mut line).expect("a pipe can be read");
            assert!(length > 0, "the wire ended before it said `{word}`; its error is above");
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.delay_file);
    }
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Compiles the program once, under a name made from its source. Other tests may do the same: the last one renames its file.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        include_str!("../../scripts/wire.rs").hash(&mut hasher);
        let program = folder().join(format!("wire-{:016x}", hasher.finish()));
        if !program.is_file() {
            let part = program.with_extension(std::process::id().to_string());
            let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/wire.rs");
            let done = Command::new(rustc).args(["--edition=2024", "-O", "-o"]).arg(&part).arg(source).status();
            assert!(done.is_ok_and(|status| status.success()), "rustc compiles {source}");
            std::fs::rename(part, &program).expect("the tests' folder can be written");
        }
        program
    })
}
