"""DataNodes behind a wire: a network namespace, and a pair of virtual cards between it and the machine. Needs root."""
import os
import random
import subprocess

from processes import fail, tool


def run(*command, check=True):
    done = subprocess.run([tool(command[0]), *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode != 0:
        fail(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return done


def outer(cluster):
    """The machine's end of the wire. A card's name has at most 15 letters."""
    return f"{cluster.netns[:13]}-o"


def free_subnet():
    """The first three bytes of a /30 that no card has."""
    if os.geteuid() != 0:
        fail("--netns needs root")
    taken = run("ip", "-o", "-4", "addr").stdout
    for _ in range(50):
        subnet = f"10.213.{random.randrange(256)}"
        if f" {subnet}." not in taken:
            return subnet
    fail("found no free subnet in 10.213.0.0/16")


def create(cluster):
    """The namespace and the wire; nothing if it is there."""
    name, card = cluster.netns, outer(cluster)
    if run("ip", "netns", "exec", name, "true", check=False).returncode == 0:
        return
    inner = f"{name[:13]}-i"
    run("ip", "netns", "add", name)
    run("ip", "link", "add", card, "type", "veth", "peer", "name", inner, "netns", name)
    run("ip", "addr", "add", f"{cluster.subnet}.1/30", "dev", card)
    run("ip", "link", "set", card, "up")
    run("ip", "-n", name, "addr", "add", f"{cluster.subnet}.2/30", "dev", inner)
    run("ip", "-n", name, "link", "set", inner, "up")
    run("ip", "-n", name, "link", "set", "lo", "up")


def remove(cluster):
    """The card goes with its namespace."""
    run("ip", "netns", "del", cluster.netns, check=False)
    run("ip", "link", "del", outer(cluster), check=False)


def inside(cluster, command):
    """The same command, run in the namespace; the process id stays the same."""
    return [tool("ip"), "netns", "exec", cluster.netns, *command]


def delay(cluster, ms):
    """Holds every packet to the DataNodes back by `ms`. The queue is long enough for 100 ms of a fast wire."""
    if not cluster.netns:
        fail("delay needs a cluster that was started with --netns")
    if ms == 0:
        run("tc", "qdisc", "del", "dev", outer(cluster), "root", check=False)
        return
    done = run("tc", "qdisc", "replace", "dev", outer(cluster), "root", "netem", "delay", f"{ms}ms", "limit", "1000000",
               check=False)
    if done.returncode != 0:
        fail(f"this kernel cannot delay packets (tc netem): {done.stdout.strip()}")
