"""Finds the files of the blocks of an HDFS file, so that a test can damage one."""
import json
import re
import urllib.parse

import health
from processes import fail

BLOCK = re.compile(r"BP-[^ :]+:(blk_\d+)_\d+ len=(\d+)")


def find(cluster, path):
    """[{block, bytes, replicas: [{datanode, file}]}] in the file's order, from the NameNode's fsck page."""
    node = health.active(cluster) or fail("no NameNode is active")
    if cluster.secure:
        fail("block-files asks the NameNode's fsck page without a login: not on a secure cluster")
    user = "root" if not (cluster.dir / "user").is_file() else (cluster.dir / "user").read_text().strip()
    query = urllib.parse.urlencode({"ugi": user, "path": path, "files": 1, "blocks": 1})
    report = health.get(cluster.address(node, "http"), f"/fsck?{query}", timeout=20) or fail("fsck did not answer")
    if "does not exist" in report:
        fail(f"no such file in HDFS: {path}")
    found = []
    for name, length in BLOCK.findall(report):
        replicas = [
            {"datanode": int(node.removeprefix("datanode")), "file": str(file)}
            for node in cluster.datanode_names
            for file in (cluster.dir / node).glob(f"current/*/current/*/**/{name}")
        ]
        found.append({"block": name, "bytes": int(length), "replicas": replicas})
    return json.dumps(found, indent=1)
