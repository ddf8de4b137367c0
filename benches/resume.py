#!/usr/bin/env python3
"""Times `--resume` beside plain reads of the same files, in turns; one JSON line per run.

    benches/resume.py checkpoints                                       # a local folder: one `dd iflag=direct` per file at the same time
    benches/resume.py hdfs://127.0.0.1:8020/checkpoints --cluster .hdfs # scripts/hdfs: one `hdfs dfs -cat` per file at the same time

docs/reliability.md, "What a checkpoint costs", has the commands that make the rows and the checkpoint; run it where `ids.parquet` lies.

A virtual machine may give free memory back to its host, in blocks of 2 MiB. To get one again takes milliseconds, and tables are in huge
pages, so equal runs differ by seconds. `--held 3400` lets another process hold so many MiB of touched huge pages and free them while
the run needs them: first 400 MiB, then 600 MiB a second. `--held 0` leaves it out.
"""
import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
JOB = {
    "data.train": "ids.parquet", "columns.label": "label", "columns.dense": "[]",
    "columns.slots": '[{column="id",kind="int"}]', "model.kind": "fm",
    "table.embedding_optimizer": '{kind="adagrad",lr=0.01}', "table.shards": "2", "train.batch_rows": "4096",
    "checkpoint.rows": "9900000",
}


def hold(mib, ready, go):
    """Touches memory, says so, and frees it step by step from the moment that `go` is written to."""
    memory = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
    os.write(ready, b"x")
    os.read(go, 1)
    at, step = 0, 400 * MIB
    while at < len(memory):
        step = min(step, len(memory) - at)
        memory.madvise(mmap.MADV_DONTNEED, at, step)
        at, step = at + step, 60 * MIB
        time.sleep(0.1)


def run(commands, held, environment):
    """Runs commands at the same time. Seconds, CPU seconds of all, and the most memory of one."""
    holder = None
    if held:
        (ready, tell_ready), (go, tell_go) = os.pipe(), os.pipe()
        holder = os.fork()
        if holder == 0:
            hold(held, tell_ready, go)
            os._exit(0)
        os.read(ready, 1)
        os.write(tell_go, b"x")
    began, used = time.perf_counter(), []
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for command in commands]
    for process in running:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"exit code {process.returncode} of {process.args}")
        used.append(usage)
    seconds = time.perf_counter() - began
    if held:
        os.kill(holder, 9)
        os.waitpid(holder, 0)
        for end in (ready, tell_ready, go, tell_go):
            os.close(end)
    return {"seconds": round(seconds, 2), "user": round(sum(u.ru_utime for u in used), 2),
            "system": round(sum(u.ru_stime for u in used), 2), "mib": max(u.ru_maxrss for u in used) >> 10}


def main():
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("checkpoints")
    top.add_argument("--cluster", type=Path)
    top.add_argument("--program", action="append", help="may be named several times; target/release/forebay by default")
    top.add_argument("--runs", type=int, default=6)
    top.add_argument("--held", type=int, default=3400)
    options = top.parse_args()
    environment = dict(os.environ)
    if options.cluster:
        classpath = subprocess.check_output([ROOT / "scripts/hdfs", "classpath", options.cluster], text=True).strip()
        environment["HADOOP_CONF_DIR"] = str((options.cluster / "conf").resolve())
        hdfs = ["java", "-Djava.net.preferIPv4Stack=true", "-cp", classpath, "org.apache.hadoop.fs.FsShell"]
        listed = subprocess.check_output([*hdfs, "-ls", "-C", options.checkpoints], text=True).split()
        plain = [[*hdfs, "-cat", file] for file in listed if "-embedding-" in file]
    else:
        files = sorted(Path(options.checkpoints).glob("*-embedding-*"))
        plain = [["dd", f"if={file}", "of=/dev/null", "bs=4M", "iflag=direct"] for file in files]
    fields = [word for field in (JOB | {"checkpoint.to": options.checkpoints}).items() for word in ("--set", "=".join(field))]
    programs = options.program or [ROOT / "target/release/forebay"]
    turns = {str(program): [[program, "train", *fields, "--resume"]] for program in programs} | {"plain": plain}
    for _ in range(options.runs):
        for name, commands in turns.items():
            print(json.dumps({"run": name} | run(commands, options.held, environment)), flush=True)


if __name__ == "__main__":
    main()
