"""Ports for the servers of a cluster."""
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from processes import fail


def free_ports(count, folder):
    """Free ports below the kernel's range for outgoing connections, for the cluster in `folder`.

    They stay the cluster's as long as the folder is there: no other cluster of this user gets them while the server behind one is
    down, so that it can be started again."""
    folder.mkdir(parents=True, exist_ok=True)
    owners = Path(tempfile.gettempdir()) / f"forebay-ports-{os.getuid()}"
    owners.mkdir(mode=0o700, exist_ok=True)
    with (owners / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for owner in owners.glob("[0-9]*"):
            if not Path(owner.read_text()).is_dir():
                owner.unlink()
        found = []
        for port in candidates():
            if (owners / str(port)).exists() or not is_free(port):
                continue
            found.append(port)
            if len(found) == count:
                for port in found:
                    (owners / str(port)).write_text(str(folder))
                return found
    fail(f"found only {len(found)} free ports, need {count}: see {owners}")


def candidates():
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # The Rust tests have the ports from 20,000 on.
    top = min(lowest_outgoing, 20_000) if lowest_outgoing > 12_000 else 20_000
    return random.sample(range(10_000, top), min(2_000, top - 10_000))


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
