"""The folder of a cluster: what the cluster is made of is kept in DIR/cluster.json, its processes' ids in DIR/run."""
import json
from pathlib import Path

from processes import PidFile


class Folder:
    """Everything about a cluster is found from its folder: no registry, no fixed port."""

    def __init__(self, folder, **fields):
        """`fields`: what is kept, as it is before the cluster is made. Each becomes an attribute."""
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
        """Writes down what the cluster is made of: from now on it exists."""
        kept = {name: getattr(self, name) for name in self.fields}
        self.state.write_text(json.dumps(kept, indent=1) + "\n")

    def pid_file(self, name):
        return PidFile(self.dir / "run" / f"{name}.pid")
