"""The folder of a cluster: DIR/cluster.json describes the cluster, DIR/run holds the ids of its processes."""
import fcntl
import json
from pathlib import Path

from processes import PidFile


def lock(folder):
    """Locks the folder of a cluster until the returned file is closed, so that `up` and `down` exclude each other."""
    file = open(folder / "lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


class Folder:
    """Base of the clusters of Hadoop and Slurm. The folder is all that identifies a cluster."""

    def __init__(self, folder, **fields):
        """`fields`: names of what cluster.json holds, with the values of a new cluster. Each becomes an attribute."""
        self.dir = Path(folder).resolve()
        self.fields = tuple(fields)
        kept = json.loads(self.state.read_text()) if self.exists else {}
        for name, value in (fields | kept).items():
            setattr(self, name, value)

    @property
    def state(self):
        return self.dir / "cluster.json"

    @property
    def exists(self):
        return self.state.is_file()

    def keep(self):
        """Writes cluster.json. The cluster exists from now on."""
        kept = {name: getattr(self, name) for name in self.fields}
        self.state.write_text(json.dumps(kept, indent=1) + "\n")

    def pid_file(self, name):
        return PidFile(self.dir / "run" / f"{name}.pid")
