"""A Slurm cluster in a folder: starting and stopping its daemons."""
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import settings
from folder import Folder
from ports import free_ports
from processes import fail, stop, tail, tool


class Cluster(Folder):
    """A Slurm cluster."""

    def __init__(self, folder):
        super().__init__(folder, count=0, ports={})
        self.conf = self.dir / "etc" / "slurm.conf"

    @property
    def nodes(self):
        return ["ps0", "gpu0", *(f"cpu{i}" for i in range(self.count - 2))]

    def create(self, nodes):
        """Chooses ports, and writes the configuration of a new cluster."""
        self.count = nodes
        names = ["slurmctld", *self.nodes]
        self.ports = dict(zip(names, free_ports(len(names), self.dir)))
        for folder in ("run", "logs", "state", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in self.nodes)):
            (self.dir / folder).mkdir(parents=True, exist_ok=True)
        key = self.dir / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        settings.write_conf(self)
        self.keep()

    def environment(self):
        """Environment of the daemons and of Slurm's commands, without variables of a job that this script may run in."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SQUEUE", "SINFO"))}
        return kept | {"SLURM_CONF": str(self.conf)}

    def command(self, name):
        if name == "munged":
            return [tool("munged"), "--foreground", "--num-threads=2", f"--socket={self.dir}/munge.sock",
                    f"--key-file={self.dir}/munge.key", f"--pid-file={self.dir}/run/munged.own.pid",
                    f"--log-file={self.dir}/logs/munged.log", f"--seed-file={self.dir}/state/munged.seed",
                    # It refuses folders that others may write to; the key itself is 0600.
                    "--force"]
        if name == "slurmctld":
            return [tool("slurmctld"), "-D", "-f", str(self.conf)]
        return [tool("slurmd"), "-D", "-N", name, "-f", str(self.conf)]

    def start(self, name):
        """Starts one of the processes if it is not running."""
        process = self.pid_file(name)
        if process.pid() is None:
            # slurmstepd and the jobs inherit it: `jobs` finds the processes of a node by it.
            own = {"SLURMD_NODENAME": name} if name in self.nodes else {}
            process.start(self.command(name), self.dir / "logs" / f"{name}.out", self.environment() | own)

    def run(self, *command):
        """Runs one of Slurm's commands; returns its output, or None if it failed."""
        done = subprocess.run([tool(command[0]), *command[1:]], env=self.environment(), capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        return done.stdout if done.returncode == 0 else None

    def up(self, deadline):
        """Starts all daemons, and returns when every node is idle or runs jobs."""
        end = time.monotonic() + deadline
        self.start("munged")
        while not (self.dir / "munge.sock").exists():
            self.check_running("munged", end)
        for name in ("slurmctld", *self.nodes):
            self.start(name)
        while True:
            output = self.run("sinfo", "-h", "-N", "-o", "%N %T") or ""
            states = dict(line.split() for line in output.splitlines())
            if len(states) == self.count and set(states.values()) <= {"idle", "mixed", "allocated", "completing"}:
                return
            for name in ("munged", "slurmctld", *self.nodes):
                self.check_running(name, end, f"nodes are {states}")

    def check_running(self, name, end, waiting=""):
        time.sleep(0.1)
        if self.pid_file(name).pid() is None:
            fail(f"{name} has ended; the end of its log:\n{tail(self.dir / 'logs' / f'{name}.out', 8)}"
                 f"{tail(self.dir / 'logs' / f'{name}.log', 12)}")
        if time.monotonic() > end:
            fail(f"not up in time: {waiting or f'{name} does not listen'}; logs are in {self.dir / 'logs'}")

    def down(self, remove):
        """Stops the daemons, then the jobs."""
        stop([self.pid_file(name) for name in (*self.nodes, "slurmctld", "munged")], grace_s=0 if remove else 5)
        self.kill_jobs()
        (self.dir / "munge.sock").unlink(missing_ok=True)
        if remove:
            shutil.rmtree(self.dir)

    def jobs(self, node=None):
        """Ids of the processes of jobs and of their slurmstepd. They outlive slurmd."""
        conf = f"SLURM_CONF={self.conf}".encode()
        marks = {f"SLURMD_NODENAME={name}".encode() for name in ([node] if node else self.nodes)}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if conf in environment and environment & marks:
                yield int(entry.name)

    def kill_jobs(self, node=None):
        """Kills the jobs, again until none is found: one may start another meanwhile."""
        end = time.monotonic() + 20
        while pids := list(self.jobs(node)):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if time.monotonic() > end:
                fail(f"processes {pids} do not end, even after kill -9")
            time.sleep(0.02)
