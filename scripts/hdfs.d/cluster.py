"""A Hadoop cluster in a folder: its addresses, and starting and stopping its processes."""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import health
import kerberos
import network
import settings
from folder import Folder
from ports import free_ports
from processes import fail, stop, tail, tool

ROOT = Path(__file__).resolve().parent.parent.parent
JARS = ROOT / ".hadoop"
# Four of these start on two cores within seconds: no second compiler, one collector thread, little heap.
JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xss512k", "-Djava.net.preferIPv4Stack=true",
       "-Dfile.encoding=UTF-8", "-XX:-UsePerfData",
       "--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED",
       "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
MAIN = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "fs": "org.apache.hadoop.fs.FsShell",
    "admin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
    "haadmin": "org.apache.hadoop.hdfs.tools.DFSHAAdmin",
}
HEAP = {"namenode": "-Xmx256m", "datanode": "-Xmx192m"}
DEFAULTS = {"ha": False, "secure": False, "protection": "authentication", "datanodes": 3, "replication": 2,
            "block_size": 1 << 20, "netns": None, "slow": None, "dead_after": 11}


class Cluster(Folder):
    """A Hadoop cluster. Its options (DEFAULTS) can be read as attributes."""

    def __init__(self, folder):
        super().__init__(folder, options={}, ports={}, subnet=None)
        self.options = DEFAULTS | self.options

    def __getattr__(self, name):
        options = self.__dict__.get("options", {})
        if name in options:
            return options[name]
        raise AttributeError(name)

    @property
    def namenodes(self):
        return ["namenode1", "namenode2"] if self.ha else ["namenode1"]

    @property
    def datanode_names(self):
        return [f"datanode{i}" for i in range(1, self.options["datanodes"] + 1)]

    @property
    def nodes(self):
        return [*self.namenodes, *self.datanode_names]

    @property
    def host(self):
        """Host of NameNodes and clients. Kerberos needs a name."""
        if self.netns:
            return f"{self.subnet}.1"
        return "localhost" if self.secure else "127.0.0.1"

    @property
    def datanode_host(self):
        return f"{self.subnet}.2" if self.netns else self.host

    @property
    def url(self):
        return f"hdfs://{settings.SERVICE}" if self.ha else f"hdfs://{self.address('namenode1', 'rpc')}"

    def address(self, node, port):
        host = self.host if node.startswith("namenode") else self.datanode_host
        return f"{host}:{self.ports[node][port]}"

    def log(self, node):
        return self.dir / "logs" / f"{node}.log"

    def create(self, options):
        """Chooses ports, and writes the configuration of a new cluster."""
        self.options |= options
        wanted = [(n, p) for n in self.namenodes for p in ("rpc", "http")]
        wanted += [(n, p) for n in self.datanode_names for p in ("data", "ipc", "http")]
        wanted += [("kdc", "kdc"), ("watch", "none")]
        for (node, port), number in zip(wanted, free_ports(len(wanted), self.dir)):
            self.ports.setdefault(node, {})[port] = number
        self.subnet = network.free_subnet() if self.netns else None
        self.dir.mkdir(parents=True, exist_ok=True)
        settings.write_conf(self)
        if self.secure:
            kerberos.create(self)
        for node in self.datanode_names:
            # A DataNode refuses other modes.
            (self.dir / node).mkdir(mode=0o700, exist_ok=True)
        self.keep()

    def environment(self):
        """Environment of JVMs and of Kerberos' tools."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HADOOP_", "KRB5", "JAVA_TOOL"))}
        if self.secure:
            env |= kerberos.environment(self)
        return env

    def java(self, kind, heap=None):
        """Command line of a JVM, up to its main class."""
        if not (JARS / "version").is_file():
            fail(f"Hadoop's jars are not in {JARS.name}: run `make setup`")
        more = os.environ.get("FOREBAY_HDFS_JAVA_OPTS", "").split()
        krb5 = [f"-Djava.security.krb5.conf={self.dir}/krb5/krb5.conf"] if self.secure else []
        return [tool("java"), heap or HEAP.get(kind, "-Xmx256m"), *JVM, *krb5, *more, "-cp", self.classpath(), MAIN[kind]]

    def classpath(self):
        return f"{self.dir}/conf:{JARS}:{JARS}/lib/*"

    def start(self, node):
        """Starts a node; returns False if it was up. Does not wait until it is healthy."""
        pid_file = self.pid_file(node)
        if pid_file.pid() is not None:
            return False
        kind = node.rstrip("0123456789")
        definitions = [f"-D{k}={v}" for k, v in settings.node_settings(self, node).items()]
        command = [*self.java(kind), *definitions]
        if self.netns and kind == "datanode":
            command = network.inside(self, command)
        pid_file.start(command, self.log(node), self.environment())
        return True

    def run(self, kind, arguments, **how):
        """Runs one of Hadoop's commands to its end."""
        return subprocess.run([*self.java(kind), *arguments], env=self.environment(), **how)

    def format(self):
        """Makes an empty file system, unless there is one."""
        first = self.dir / "namenode1"
        if (first / "current" / "VERSION").is_file():
            return
        definitions = [f"-D{k}={v}" for k, v in settings.node_settings(self, "namenode1").items()]
        with open(self.dir / "logs" / "format.log", "wb") as log:
            done = subprocess.run([*self.java("namenode"), *definitions, "-format", "-nonInteractive"], cwd="/",
                                  env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if done.returncode != 0:
            print(tail(self.dir / "logs" / "format.log"), end="")
            fail("the file system could not be formatted (the log's tail is above)")
        for other in self.namenodes[1:]:
            shutil.copytree(first, self.dir / other, dirs_exist_ok=True)

    def up(self, deadline_s):
        """Starts all nodes that are down, and waits until the cluster is healthy."""
        (self.dir / "logs").mkdir(exist_ok=True)
        if self.netns:
            network.create(self)
        if self.secure:
            kerberos.start(self)
        for node in self.datanode_names:
            self.start(node)
        self.format()
        for node in self.namenodes:
            self.start(node)
        self.activate(deadline_s)
        self.wait(deadline_s)

    def activate(self, deadline_s):
        """HA: makes a NameNode active if none is."""
        if not self.ha:
            return
        health.wait_for_roles(self, deadline_s)
        if health.active(self) is None:
            first = next(n for n in self.namenodes if self.pid_file(n).pid())
            self.haadmin("-transitionToActive", "nn" + first.removeprefix("namenode"))

    def haadmin(self, *arguments):
        done = self.run("haadmin", arguments, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"haadmin {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")

    def wait(self, deadline_s):
        roles = {"active": 1, "standby": 1} if self.ha else {"active": 1}
        health.wait(self, roles, deadline_s, must_live=self.nodes)

    def mend(self, deadline_s):
        """Resumes and restarts all nodes, ends delays and safe mode, and waits until the cluster is healthy."""
        for node in self.nodes:
            self.pid_file(node).signal(signal.SIGCONT)
        if self.netns:
            network.delay(self, 0)
        for node in self.nodes:
            self.start(node)
        self.activate(deadline_s)
        active = health.active(self)
        if active and health.namenode(self, active)["safe_mode"]:
            self.run("admin", ["-safemode", "leave"], stdout=subprocess.DEVNULL)
        self.wait(deadline_s)

    def down(self, grace_s, remove):
        """Stops all processes."""
        names = [*self.nodes, "kdc"] if self.exists else []
        stop([self.pid_file(n) for n in names], grace_s)
        if self.exists and self.netns:
            network.remove(self)
        if remove:
            shutil.rmtree(self.dir, ignore_errors=True)
