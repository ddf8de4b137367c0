"""Processes that outlive the script: each in its own session, identified by its id and start time."""
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path


def fail(message):
    """Ends the program with one line that says what to do."""
    raise SystemExit(f"{Path(sys.argv[0]).name}: {message}")


def start_time(pid):
    """When process `pid` began, in the kernel's ticks; None if it has ended (a zombie has)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def until_gone(pid, folder):
    """Waits until process `pid` has ended (a zombie has), or `folder` is removed."""
    began = start_time(pid)
    while began is not None and start_time(pid) == began and Path(folder).is_dir():
        time.sleep(0.2)


class PidFile:
    """The file with a process's id, and its start time, which tells it from a later process with the same id."""

    def __init__(self, path):
        self.path = path

    def pid(self):
        """The process id, or None if the process has ended."""
        try:
            pid, began = self.path.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if start_time(pid) == began else None

    def start(self, command, log, env=None):
        """Starts `command` with its output appended to `log`. It inherits no pipe of this script."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd="/",
                                       start_new_session=True)
        self.path.write_text(f"{process.pid} {start_time(process.pid)}\n")

    def signal(self, number):
        """Sends a signal. Returns whether the process was running."""
        pid = self.pid()
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def kill(self):
        """Kills the process and waits until it has ended. Returns whether it was running."""
        return stop([self], grace_s=0) == 1


def stop(pid_files, grace_s):
    """Sends SIGTERM to all, and SIGKILL after `grace_s` seconds. Returns how many were running."""
    first = signal.SIGTERM if grace_s > 0 else signal.SIGKILL
    running = [p for p in pid_files if p.signal(first)]
    for process in running:
        process.signal(signal.SIGCONT)
    late = time.monotonic() + grace_s
    last = late + 20
    waiting = list(running)
    while waiting:
        time.sleep(0.02)
        waiting = [p for p in waiting if p.pid() is not None]
        if time.monotonic() > late:
            for process in waiting:
                process.signal(signal.SIGKILL)
        if time.monotonic() > last:
            fail(f"processes {[p.pid() for p in waiting]} do not end, even after kill -9")
    for process in pid_files:
        process.path.unlink(missing_ok=True)
    return len(running)


def tool(name):
    """Path of a program; also searches /usr/sbin and /sbin."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    return path or fail(f"{name} is missing: run `make setup`")


def tail(path, lines=25):
    """The last lines of a log."""
    try:
        return "".join(Path(path).read_text(errors="replace").splitlines(keepends=True)[-lines:])
    except OSError as error:
        return f"({error})\n"
