"""Runs the program and returns what it did: rows, seconds, CPU seconds of each process, bytes, AUC.

Takes commands of `forebay`, each with a name; returns a dict per run. Blocks until all processes have ended; if one fails, or
this script is stopped, all are killed.
"""
import json, os, re, signal, subprocess, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("FOREBAY", str(ROOT / "target/release/forebay"))
TICK = os.sysconf("SC_CLK_TCK")


class Process:
    """One process: its output goes to a file, its CPU seconds are the kernel's own count at its end."""

    def __init__(self, name, command, **options):
        self.name, self.out, self.err = name, tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.cpu, self.status, self.children, self.pids = None, None, {}, set()
        self.popen = subprocess.Popen(command, stdout=self.out, stderr=self.err, process_group=0, **options)

    def poll(self):
        if self.status is None:
            pid, status, usage = os.wait4(self.popen.pid, os.WNOHANG)
            if pid:
                self.status, self.cpu = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
                self.popen.returncode = self.status
        return self.status

    def look(self):
        """CPU seconds of its children by name, as of now: `forebay launch` starts the roles itself."""
        pid = self.popen.pid
        for child in read(f"/proc/{pid}/task/{pid}/children").split():
            fields = read(f"/proc/{child}/stat").rpartition(")")[2].split()
            command = read(f"/proc/{child}/cmdline").split("\0")
            if len(fields) > 13 and "role" in command:
                at = command.index("role")
                name = command[at + 1] + " " + command[command.index("--rank") + 1]
                self.pids.add(int(child))
                self.children[name] = (int(fields[11]) + int(fields[12])) / TICK

    def text(self, stream):
        stream.seek(0)
        return stream.read()

    def kill(self):
        if self.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()
        # `launch` gives each role a group of its own.
        for pid in self.pids:
            if read(f"/proc/{pid}/cmdline").startswith(PROGRAM):
                os.kill(pid, signal.SIGKILL)


def read(path):
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def together(processes, report, patience=600):
    """Waits for all processes of a run, and reads the trainer's output; `report` is the file of its `--report`."""
    begun = time.monotonic()
    try:
        while None in [p.poll() for p in processes]:
            failed = [p for p in processes if p.status not in (None, 0)]
            if failed or time.monotonic() - begun > patience:
                raise RuntimeError("\n".join(f"--- {p.name} {p.status}\n{p.text(p.out)[-2000:]}{p.text(p.err)[-2000:]}"
                                             for p in (failed or processes)))
            for p in processes:
                p.look()
            time.sleep(0.02)
    finally:
        for p in processes:
            p.kill()
    if any(p.status for p in processes):
        raise RuntimeError("\n".join(p.text(p.err)[-2000:] for p in processes))
    out = "\n".join(p.text(p.out) for p in processes)
    report = json.loads(read(report))
    rows, seconds = report["ledger"]["read"], report["wall"]
    cpu = {p.name: round(p.cpu, 3) for p in processes}
    split = {name: seconds for p in processes for name, seconds in p.children.items()}
    result = {"rows": rows, "seconds": round(seconds, 3), "rows_per_s": round(rows / seconds),
              "cpu_s_per_M": round(sum(cpu.values()) / rows * 1e6, 3), "cpu": split or cpu,
              "busy": {stage["name"]: round(stage["busy"] / seconds, 3) for stage in report["stages"]}}
    if found := re.search(r"evaluated on .*AUC ([\d.]+)", out):
        result["auc"] = float(found[1])
    return result


def settings(**values):
    """Fields of a job for the command line; a double underscore is the dot."""
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


def rows(folder, rows, first=0):
    """Generated rows in `folder`, made once."""
    if not list(folder.glob("*.parquet")):
        command = [PROGRAM, "data", "synth", "--rows", str(rows), "--first-row", str(first), "--out", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(folder)
