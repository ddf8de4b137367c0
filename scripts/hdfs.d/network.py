"""DataNodes in a network namespace, connected to the machine by two network cards with a delay. Needs root.

The delay is `tc netem` on a veth pair if the kernel has netem, else `scripts/wire.rs`, which is compiled here.
"""
import os
import random
import subprocess
import time
from pathlib import Path

from processes import fail, tail, tool


def run(*command, check=True):
    done = subprocess.run([tool(command[0]), *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode != 0:
        fail(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return done


def cards(cluster):
    """Names of the two cards, the machine's and the namespace's; at most 15 letters each."""
    return f"{cluster.netns[:13]}-o", f"{cluster.netns[:13]}-i"


def free_subnet():
    """The first three bytes of a /30 that no card uses."""
    if os.geteuid() != 0:
        fail("--netns needs root")
    taken = run("ip", "-o", "-4", "addr").stdout
    for _ in range(50):
        subnet = f"10.213.{random.randrange(256)}"
        if f" {subnet}." not in taken:
            return subnet
    fail("found no free subnet in 10.213.0.0/16")


def create(cluster):
    """Makes the namespace and the cards, unless they exist."""
    name, (outer, inner) = cluster.netns, cards(cluster)
    if run("ip", "link", "show", outer, check=False).returncode == 0:
        return
    run("ip", "netns", "add", name)
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
    if netem(cluster, 1).returncode == 0:
        netem(cluster, 0)
    else:
        run("ip", "link", "del", outer)
        start_wire(cluster)
    run("ip", "addr", "add", f"{cluster.subnet}.1/30", "dev", outer)
    run("ip", "link", "set", outer, "up")
    run("ip", "-n", name, "addr", "add", f"{cluster.subnet}.2/30", "dev", inner)
    run("ip", "-n", name, "link", "set", inner, "up")
    run("ip", "-n", name, "link", "set", "lo", "up")


def start_wire(cluster):
    """Starts scripts/wire.rs. Packets are as large as on loopback, queues long enough to drop none."""
    outer, inner = cards(cluster)
    program = cluster.dir / "run" / "wire"
    program.parent.mkdir(exist_ok=True)
    if not program.is_file():
        run("rustc", "--edition=2024", "-O", "-o", str(program), str(Path(__file__).parents[1] / "wire.rs"))
    log = cluster.log("wire")
    log.unlink(missing_ok=True)
    cluster.pid_file("wire").start([str(program), "tun", cluster.netns, outer, inner, str(delay_file(cluster))], log)
    end = time.monotonic() + 20
    while "ready" not in tail(log):
        if cluster.pid_file("wire").pid() is None or time.monotonic() > end:
            fail(f"no wire between the machine and {cluster.netns}: {tail(log)}")
        time.sleep(0.02)
    for where, card in ((["ip"], outer), (["ip", "-n", cluster.netns], inner)):
        run(*where, "link", "set", card, "mtu", "65535", "txqueuelen", "100000")


def remove(cluster):
    """Removes the namespace and the cards."""
    cluster.pid_file("wire").kill()
    run("ip", "netns", "del", cluster.netns, check=False)
    run("ip", "link", "del", cards(cluster)[0], check=False)


def inside(cluster, command):
    """The command that runs `command` in the namespace, with the same process id."""
    return [tool("ip"), "netns", "exec", cluster.netns, *command]


def delay_file(cluster):
    return cluster.dir / "run" / "delay-ms"


def netem(cluster, ms):
    """Sets the delay. The queue is long enough for 100 ms of a fast network."""
    outer = cards(cluster)[0]
    if ms == 0:
        return run("tc", "qdisc", "del", "dev", outer, "root", check=False)
    return run("tc", "qdisc", "replace", "dev", outer, "root", "netem", "delay", f"{ms}ms", "limit", "1000000", check=False)


def delay(cluster, ms):
    """Delays every packet to the DataNodes by `ms` milliseconds."""
    if not cluster.netns:
        fail("delay needs a cluster that was started with --netns")
    if cluster.pid_file("wire").pid() is None:
        done = netem(cluster, ms)
        if done.returncode != 0 and ms != 0:
            fail(f"tc netem failed: {done.stdout.strip()}")
        return
    delay_file(cluster).write_text(f"{ms}\n")
    # The wire reads the file ten times a second.
    time.sleep(0.2)
