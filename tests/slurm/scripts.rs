//! `deploy/slurm` with a stand-in for the program, which prints its arguments and waits for SIGTERM.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use super::cluster::{Run, Slurm, wait_until};

/// Prints one line at the start, one for each SIGTERM, and one at the end. A second SIGTERM ends it at once. SIGUSR1 makes it fail
/// as if a peer were gone: exit code 3.
const STAND_IN: &str = r#"#!/usr/bin/env bash
stop=
trap 'echo TERM; [ -z "$stop" ] || exit 130; stop=yes' TERM
trap 'exit 3' USR1
echo "stand-in role=$2 job=$3 rank=${SLURM_ARRAY_TASK_ID:-$SLURM_PROCID} node=$SLURMD_NODENAME pid=$$ \
coordinator=$FOREBAY_COORDINATOR listen=${FOREBAY_LISTEN:-} advertise=${FOREBAY_ADVERTISE:-} run=$FOREBAY_RUN \
token=$FOREBAY_TOKEN_FILE ca=$FOREBAY_TLS_CA cert=${FOREBAY_TLS_CERT:-} key=${FOREBAY_TLS_KEY:-} \
gpu=${CUDA_VISIBLE_DEVICES:-} starts=${SLURM_RESTART_COUNT:-0} arguments=$(IFS=,; echo "${*:4}")"
while [ -z "$stop" ]; do sleep 0.1; done
echo drained
"#;

/// What one start of the stand-in printed.
type Said = BTreeMap<String, String>;

fn up(nodes: u32) -> (Slurm, PathBuf, PathBuf) {
    up_with(nodes, STAND_IN)
}

/// The same with another script as the program.
fn up_with(nodes: u32, script: &str) -> (Slurm, PathBuf, PathBuf) {
    let slurm = Slurm::up(nodes);
    let (job, program) = (slurm.shared().join("job.toml"), slurm.shared().join("stand-in"));
    std::fs::write(&job, "seed = 1\n").unwrap();
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    (slurm, job, program)
}

/// Every start of a process so far, the oldest first.
fn starts(run: &Run, name: &str) -> Vec<Said> {
    let log = run.log(name);
    // The last line may not be whole yet.
    let whole = log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let lines = whole.filter_map(|line| line.strip_prefix("stand-in "));
    lines
        .map(|line| line.split(' ').filter_map(|w| w.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect())
        .collect()
}

/// Waits for the process's start number `count` (from 1).
fn start(run: &Run, name: &str, count: usize) -> Said {
    wait_until(&format!("start {count} of {name}"), || starts(run, name).get(count - 1).cloned())
}

/// Sends this start of a process a signal.
fn signal(start: &Said, signal: &str) {
    assert!(Command::new("kill").args([signal, &start["pid"]]).status().unwrap().success());
}

fn drained_once(run: &Run, name: &str) {
    wait_until(&format!("{name} has drained"), || run.log(name).contains("drained").then_some(()));
    // A second signal would stop the program at once.
    assert_eq!(run.log(name).lines().filter(|line| *line == "TERM").count(), 1, "{name} got SIGTERM once");
}

#[test]
fn every_process_gets_its_role_its_rank_and_the_coordinators_address() {
    let (slurm, job, program) = up(3);
    let options = ["--readers", "2", "--ps", "2", "--trainers", "2", "--gpus", "1", "--", "--set", "train.epochs=3"];
    let run = slurm.submit(&job, &program, &options);
    let names = ["ps-0", "ps-1", "reader-0", "reader-1", "trainer-0", "trainer-1"];
    let said: BTreeMap<&str, Said> = names.iter().map(|name| (*name, start(&run, name, 1))).collect();

    let coordinator = format!("127.0.0.11:{}", 7600 + run.ps % 1000);
    let folder = run.folder.display();
    for (name, said) in &said {
        let (role, rank) = name.split_once('-').unwrap();
        assert_eq!((said["role"].as_str(), said["rank"].as_str()), (role, rank), "{name}");
        assert_eq!(said["coordinator"], coordinator, "{name}");
        assert_eq!(said["job"], format!("{folder}/job.toml"), "a copy: what is changed later changes no run");
        assert_eq!(said["token"], format!("{folder}/token"), "{name}");
        for wanted in ["placement.readers=2", "placement.ps=2", "placement.trainers=2", "train.epochs=3"] {
            assert!(said["arguments"].contains(wanted), "no {wanted} in {}", said["arguments"]);
        }
    }
    assert!(said.values().all(|s| s["run"] == said["ps-0"]["run"] && !s["run"].is_empty()), "one name for the run");
    assert_eq!(said["ps-0"]["listen"], coordinator);
    assert_eq!(said["ps-1"]["listen"], "127.0.0.11:0", "any free port: two on a node do not collide");
    assert_eq!(said["trainer-1"]["listen"], "127.0.0.12:0");
    assert_eq!(said["trainer-1"]["advertise"], "127.0.0.12", "what Slurm reaches the node by");
    assert_eq!(said["reader-0"]["listen"], "", "readers only dial");
    assert_ne!(said["trainer-0"]["gpu"], said["trainer-1"]["gpu"], "a GPU each");
    for (name, node) in [("ps-0", "ps0"), ("reader-0", "cpu0"), ("trainer-0", "gpu0")] {
        assert_eq!(said[name]["node"], node);
    }

    let mode = |path: &str| std::fs::metadata(run.folder.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("token"), mode("tls/ca.key"), mode("tls/ps-0.key"), mode(".")), (0o600, 0o600, 0o600, 0o700));
    for name in ["ps-0", "ps-1", "trainer-0", "trainer-1"] {
        let said = &said[name];
        let verify = [
            "verify",
            "-x509_strict",
            "-purpose",
            "sslserver",
            "-CAfile",
            &said["ca"],
            "-verify_ip",
            &said["advertise"],
        ];
        let output = Command::new("openssl").args(verify).arg(&said["cert"]).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }

    // As a user cancels the run.
    let jobs = [run.ps, run.trainers, run.readers].map(|job| job.to_string());
    slurm.run("scancel", &jobs.each_ref().map(String::as_str));
    names.iter().for_each(|name| drained_once(&run, name));
    wait_until("no job is left", || slurm.tasks().is_empty().then_some(()));
}

#[test]
fn a_lost_node_requeues_its_reader_only() {
    // cpu0, cpu1 and one spare: the trainer runs on gpu0, so a reader that wants a node of its own cannot run there.
    let (slurm, job, program) = up(5);
    let run = slurm.submit(&job, &program, &["--readers", "2", "--sbatch-reader", "--exclusive"]);
    let before = slurm.all_run(4);
    let lost = start(&run, "reader-0", 1);
    let node = lost["node"].clone();
    assert_ne!(start(&run, "reader-1", 1)["node"], node, "a node each");

    slurm.kill_node(&node);
    wait_until("the reader is requeued", || slurm.tasks().iter().any(|task| task.state == "PENDING").then_some(()));
    slurm.start_requeued_now();
    let again = start(&run, "reader-0", 2);
    assert_eq!((again["rank"].as_str(), again["starts"].as_str()), ("0", "1"));
    assert_ne!(again["node"], node);
    assert_eq!(again["coordinator"], lost["coordinator"]);

    let after = slurm.all_run(4);
    let others = |tasks: &[super::cluster::Task]| {
        tasks.iter().filter(|t| (t.job, t.index) != (run.readers, Some(0))).cloned().collect::<Vec<_>>()
    };
    assert_eq!(others(&before), others(&after), "nothing else has moved");
    for name in ["ps-0", "trainer-0", "reader-1"] {
        assert_eq!(starts(&run, name).len(), 1, "{name} was not started again");
        assert!(!run.log(name).contains("TERM"), "{name} was left in peace");
    }
    // Slurm has given up the process, but it is alive: leases have terms and trainers incarnations because of this.
    assert!(PathBuf::from(format!("/proc/{}", lost["pid"])).exists(), "the lost reader's process runs on");
}

#[test]
fn readers_are_added_while_it_runs() {
    let (slurm, job, program) = up(3);
    let run = slurm.submit(&job, &program, &["--readers", "1"]);
    start(&run, "reader-0", 1);
    let first = slurm.add_readers(&run, 2);
    let second = slurm.add_readers(&run, 1);
    for (name, rank) in [("reader-1", "1"), ("reader-2", "2"), ("reader-3", "3")] {
        let said = start(&run, name, 1);
        assert_eq!(said["rank"], rank);
        assert_eq!(said["coordinator"], start(&run, "ps-0", 1)["coordinator"]);
    }
    let ranks: Vec<_> = slurm.all_run(6).iter().map(|task| (task.job, task.index)).collect();
    assert!(ranks.contains(&(first, Some(2))) && ranks.contains(&(second, Some(3))), "{ranks:?}");

    // Without the time limit of a plain `scancel`: the job ends when it has drained.
    slurm.run("scancel", &["--signal=TERM", &first.to_string()]);
    drained_once(&run, "reader-1");
    drained_once(&run, "reader-2");
    wait_until("only the added readers have ended", || (slurm.tasks().len() == 4).then_some(()));
}

#[test]
fn a_requeued_ps_is_found_again() {
    let (slurm, job, program) = up(4);
    // In the partition of three nodes, so that it can be restarted on another.
    let run = slurm.submit(&job, &program, &["--sbatch-ps", "--partition=cpu"]);
    let reader = start(&run, "reader-0", 1);
    let ps = start(&run, "ps-0", 1);
    start(&run, "trainer-0", 1);
    let left = ps["node"].clone();
    slurm.run("scontrol", &["update", &format!("nodename={left}"), "state=drain", "reason=test"]);
    slurm.run("scontrol", &["requeue", &run.ps.to_string()]);
    wait_until("the ps is requeued", || {
        let tasks = slurm.tasks();
        tasks.iter().any(|task| task.job == run.ps && task.state == "PENDING").then_some(())
    });
    // The reader has given up the coordinator, with the exit code of an external fault; the trainer still waits for it.
    signal(&reader, "-USR1");
    wait_until("the reader waits", || run.log("reader-0").contains("waiting for the ps job").then_some(()));
    slurm.start_requeued_now();
    let back = start(&run, "ps-0", 2);
    assert_ne!(back["node"], left);
    for name in ["reader-0", "trainer-0"] {
        let said = start(&run, name, 2);
        assert_eq!(said["coordinator"], back["coordinator"], "{name} has found it");
        assert_eq!(said["starts"], "0", "{name} kept its place");
    }
    assert_ne!(back["coordinator"], reader["coordinator"]);
    assert!(run.log("trainer-0").contains("was started again, and so is this"), "{}", run.log("trainer-0"));
    assert!(!run.log("reader-0").contains("was started again, and so is this"), "{}", run.log("reader-0"));
}

/// A bug: the task ended, and with the task of a ps or of a trainer the run.
#[test]
fn a_process_that_is_killed_or_has_lost_something_is_started_again_in_its_place() {
    let (slurm, job, program) = up(3);
    let run = slurm.submit(&job, &program, &[]);
    let before = slurm.all_run(3);
    for name in ["reader-0", "trainer-0", "ps-0"] {
        let mut killed = start(&run, name, 1);
        assert!(!killed["arguments"].contains("--resume"), "{killed:?}");
        let ends = [
            ("-KILL", "was killed by signal 9 (SIGKILL)"),
            ("-SEGV", "was killed by signal 11 (SIGSEGV)"),
            // A bug: a store that could not be reached for a moment ended the run.
            ("-USR1", "ended with exit code 3"),
        ];
        for (number, (by, said)) in ends.into_iter().enumerate() {
            signal(&killed, by);
            let again = start(&run, name, 2 + number);
            for same in ["rank", "node", "coordinator", "starts"] {
                assert_eq!(again[same], killed[same], "{same} of {name}");
            }
            assert!(again["arguments"].contains("--resume"), "{again:?}");
            let said = format!("the program {said}: starts it again in 0 s (restart {} of 10)", 1 + number);
            // Standard error may be later in the log than standard output.
            wait_until(&format!("{name} says `{said}`"), || run.log(name).contains(&said).then_some(()));
            killed = again;
        }
    }
    assert_eq!(slurm.all_run(3), before, "no task has ended");
    // One that is asked to shut down is not started again.
    signal(&start(&run, "reader-0", 4), "-TERM");
    drained_once(&run, "reader-0");
    wait_until("its task has ended", || (slurm.tasks().len() == 2).then_some(()));
}

#[test]
fn a_process_that_always_fails_ends_after_ten_restarts() {
    for (end, ended, code) in
        [("kill -9 $$", "was killed by signal 9 (SIGKILL)", 137), ("exit 3", "ended with exit code 3", 3)]
    {
        let (slurm, job, program) = up_with(3, &format!("#!/bin/sh\n{end}\n"));
        let run = slurm.submit(&job, &program, &[]);
        wait_until("all jobs have ended", || slurm.tasks().is_empty().then_some(()));
        let said = slurm.run("scontrol", &["show", "job", &run.ps.to_string()]);
        assert!(said.contains("JobState=FAILED") && said.contains(&format!("ExitCode={code}:0")), "{said}");
        let said = run.log("ps-0");
        assert_eq!(said.matches(": starts it again in 0 s").count(), 10, "{said}");
        let last = format!("the program {ended}; it is not started again, because it has had 10 restarts");
        assert!(said.contains(&last), "{said}");
    }
}

/// Training again for hours would not save it either.
#[test]
fn a_run_whose_model_cannot_be_saved_is_not_started_again() {
    let (slurm, job, program) = up_with(3, "#!/bin/sh\necho \"$@\"\nexit 7\n");
    let run = slurm.submit(&job, &program, &[]);
    wait_until("all jobs have ended", || slurm.tasks().is_empty().then_some(()));
    let said = slurm.run("scontrol", &["show", "job", &run.ps.to_string()]);
    assert!(said.contains("JobState=FAILED") && said.contains("ExitCode=3:0"), "{said}");
    let said = run.log("ps-0");
    assert!(said.contains("--restarted-on-fault") && !said.contains("starts it again"), "{said}");
}

#[test]
fn a_user_fault_ends_a_process_at_once() {
    let (slurm, job, _) = up(3);
    let run = slurm.submit(&job, &PathBuf::from("/bin/false"), &[]);
    wait_until("all jobs have failed", || slurm.tasks().is_empty().then_some(()));
    for job in [run.ps, run.trainers, run.readers] {
        let said = slurm.run("scontrol", &["show", "job", &job.to_string()]);
        assert!(said.contains("JobState=FAILED"), "{said}");
    }
    let said = run.log("reader-0");
    assert!(!said.contains("another start"), "{said}");
}

#[test]
fn a_failed_submit_says_why_and_cancels_its_jobs() {
    let (slurm, job, program) = up(3);
    let (job, program, there) = (job.to_str().unwrap(), program.to_str().unwrap(), slurm.shared());
    let there = there.to_str().unwrap();
    for (arguments, said) in [
        (&["--readers", "1"][..], "which job?"),
        (&["/no/such/job.toml"], "/no/such/job.toml: cannot read it"),
        (&[job, "--program", program, "--reader", "1"], "--reader: there is no such option"),
        (&[job, "--program", program, "--readers", "many"], "--readers many: need a number of 0 or more"),
        (&[job, "--program", program, "--ps", "0"], "--ps 0: need a number of 1 or more"),
        (&[job, "--program", program, "--trainers"], "--trainers needs a value"),
        (&[job, "--program", job], "not a program"),
        (&[job, "--program", program, "--tls-ca", job], "--tls-cert, --tls-key and --tls-ca go together"),
        (&[job, "--program", program, "--token-file", "/no/token"], "--token-file /no/token: cannot read it"),
        (&[job, "--program", program, "--run", there], "a run needs a folder of its own"),
        // Slurm finds this only after the ps and the trainer are submitted.
        (&[job, "--program", program, "--partition-reader", "moon"], "invalid partition"),
    ] {
        let refused = slurm.refused(arguments);
        assert!(refused.contains(said), "{arguments:?}: no `{said}` in: {refused}");
    }
    wait_until("submitted jobs are cancelled", || slurm.tasks().is_empty().then_some(()));
}
