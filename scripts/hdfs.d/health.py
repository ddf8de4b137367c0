"""Whether a cluster is healthy, by the servers' HTTP ports, which is faster than starting a JVM."""
import json
import time
import urllib.error
import urllib.parse
import urllib.request

from processes import fail, tail

# Ignores proxies of the environment.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(address, path, timeout=3.0):
    """The body of http://address/path, or None after the timeout."""
    try:
        with OPENER.open(f"http://{address}{path}", timeout=timeout) as answer:
            return answer.read().decode()
    except (OSError, urllib.error.URLError, ValueError):
        return None


def bean(address, service, name):
    """One JMX bean of a server, as a dict; empty if the server does not answer."""
    body = get(address, f"/jmx?qry=Hadoop:service={service},name={name}")
    try:
        beans = json.loads(body)["beans"] if body else []
    except (ValueError, KeyError):
        return {}
    return beans[0] if beans else {}


def namenode(cluster, node):
    """{role: active | standby | starting | down, safe_mode, live}"""
    if cluster.pid_file(node).pid() is None:
        return {"role": "down"}
    address = cluster.address(node, "http")
    state = bean(address, "NameNode", "FSNamesystemState")
    role = bean(address, "NameNode", "NameNodeStatus").get("State")
    if not state or role not in ("active", "standby"):
        return {"role": "starting"}
    return {"role": role, "safe_mode": state.get("FSState") != "Operational", "live": state.get("NumLiveDataNodes")}


def datanode(cluster, node):
    """down | stalled or starting | running. Running: it has registered with every NameNode that is up."""
    if cluster.pid_file(node).pid() is None:
        return "down"
    info = bean(cluster.address(node, "http"), "DataNode", "DataNodeInfo")
    try:
        actors = json.loads(info["BPServiceActorInfo"])
    except (KeyError, ValueError):
        return "stalled or starting"
    up = {cluster.address(n, "rpc").rpartition(":")[2] for n in cluster.namenodes if cluster.pid_file(n).pid()}
    joined = {a["NamenodeAddress"].rpartition(":")[2] for a in actors if a["ActorState"] == "RUNNING"}
    return "running" if up and up <= joined else "stalled or starting"


def active(cluster):
    """The active NameNode's name, or None."""
    return next((n for n in cluster.namenodes if namenode(cluster, n)["role"] == "active"), None)


def status(cluster):
    """Every node's state."""
    return {n: namenode(cluster, n) for n in cluster.namenodes} | {n: datanode(cluster, n) for n in cluster.datanode_names}


def lacking(cluster, role_counts, safe_mode):
    """Why the cluster is not healthy, or None."""
    roles = {}
    for node in cluster.namenodes:
        state = namenode(cluster, node)
        role = state["role"]
        roles[role] = roles.get(role, 0) + 1
        if role == "active":
            if not safe_mode and state["safe_mode"]:
                return f"{node} is in safe mode"
            if state["live"] != len(cluster.datanode_names):
                return f"{node} knows {state['live']} live DataNodes of {len(cluster.datanode_names)}"
    for role, count in role_counts.items():
        if roles.get(role, 0) != count:
            return f"{roles.get(role, 0)} NameNode(s) are {role}, should be {count} ({roles})"
    for node in cluster.datanode_names:
        state = datanode(cluster, node)
        if state != "running":
            return f"{node} is {state}"
    return None


def wait(cluster, role_counts, deadline_s, safe_mode=False, must_live=()):
    """Waits until the cluster is healthy; fails with the logs' tails at the deadline, or when a node of `must_live` ended."""
    end = time.monotonic() + deadline_s
    while True:
        why = lacking(cluster, role_counts, safe_mode)
        if why is None:
            return
        dead = [n for n in must_live if cluster.pid_file(n).pid() is None]
        if dead or time.monotonic() > end:
            nodes = dead or [*cluster.namenodes, *cluster.datanode_names]
            for node in nodes:
                print(f"--- {node}\n{tail(cluster.log(node))}", end="")
            fail(f"{', '.join(dead)} ended while starting (its log's tail is above)" if dead
                 else f"not healthy after {deadline_s} s: {why} (the logs' tails are above)")
        time.sleep(0.1)


def wait_for_roles(cluster, deadline_s):
    """Waits until every NameNode that runs knows its role."""
    end = time.monotonic() + deadline_s
    while True:
        roles = {n: namenode(cluster, n)["role"] for n in cluster.namenodes}
        if "starting" not in roles.values() and set(roles.values()) != {"down"}:
            return
        if set(roles.values()) == {"down"} or time.monotonic() > end:
            for node in cluster.namenodes:
                print(f"--- {node}\n{tail(cluster.log(node))}", end="")
            fail(f"no NameNode came up: {roles} (the logs' tails are above)")
        time.sleep(0.1)
