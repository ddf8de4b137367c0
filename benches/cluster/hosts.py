"""Simulated machines: network namespaces behind a switch, each with its own address and a limited network.

Gives commands that run inside, the bytes that a host sent and received, a certificate and a token for the run. Needs root,
`ip` and `tc` (Debian's iproute2) and `openssl`. Calls block until the kernel is done.
"""
import json, os, secrets, subprocess

PREFIX, BRIDGE, MTU = "forebay-cluster-bench", "bridge", 9000


def sh(*words, lines=None):
    done = subprocess.run([str(word) for word in words], input=lines, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr}{lines or ''}")
    return done.stdout


class Hosts:
    """`with Hosts(["ps0", "trainer0"]) as hosts:`. Removes first what a killed run left, and removes the hosts at the end."""

    def __init__(self, names):
        if os.geteuid():
            raise SystemExit("hosts are network namespaces, which only root can make: run this as root")
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}

    def __enter__(self):
        self.__exit__()
        sh("ip", "netns", "add", f"{PREFIX}-switch")
        self.ip("switch", f"link add name {BRIDGE} type bridge\nlink set dev {BRIDGE} up\n")
        for name, address in self.addresses.items():
            sh("ip", "netns", "add", f"{PREFIX}-{name}")
            self.ip("switch", f"link add name {name} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {PREFIX}-{name}\n"
                              f"link set dev {name} master {BRIDGE} up\n")
            self.ip(name, f"link set lo up\nlink set eth0 up\naddr add {address}/24 dev eth0\n")
        return self

    def __exit__(self, *_):
        for namespace in sh("ip", "netns", "list").split():
            if namespace.startswith(PREFIX):
                sh("ip", "netns", "del", namespace)

    def ip(self, name, lines):
        sh("ip", "-n", f"{PREFIX}-{name}", "-batch", "-", lines=lines)

    def line(self, name, mbit):
        """Limits both ways. The bucket holds 5 ms, since a busy core may be late; the queue is that of a deep switch."""
        for namespace, card in (("switch", name), (name, "eth0")):
            sh("tc", "-n", f"{PREFIX}-{namespace}", "qdisc", "replace", "dev", card, "root", "tbf", "rate", f"{mbit}mbit",
               "burst", f"{max(mbit * 625, 20_000)}b", "latency", "100ms")

    def bytes(self, name):
        """Bytes so far to and from the host, with the headers of TCP and IP."""
        stats = json.loads(sh("ip", "-n", f"{PREFIX}-{name}", "-s", "-j", "link", "show", "eth0"))[0]["stats64"]
        return stats["rx"]["bytes"], stats["tx"]["bytes"]

    def command(self, name, *words):
        return ["ip", "netns", "exec", f"{PREFIX}-{name}", *map(str, words)]


def credentials(folder, addresses):
    """Makes TLS files and a token, which the program needs beyond loopback. Returns the environment that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(secrets.token_hex(32))
    (folder / "leaf.ext").write_text("basicConstraints=CA:FALSE\nsubjectAltName="
                                     + ",".join(f"IP:{address}" for address in addresses) + "\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca = ["-x509", "-days", "30", "-subj", "/CN=bench authority", "-addext", "basicConstraints=critical,CA:TRUE"]
    sh("openssl", "req", *ca, *new_key, "-keyout", folder / "ca.key", "-out", folder / "ca.pem")
    sh("openssl", "req", *new_key, "-subj", "/CN=bench", "-keyout", folder / "key.pem", "-out", folder / "leaf.csr")
    sh("openssl", "x509", "-req", "-days", "30", "-in", folder / "leaf.csr", "-CA", folder / "ca.pem", "-CAkey",
       folder / "ca.key", "-CAcreateserial", "-extfile", folder / "leaf.ext", "-out", folder / "leaf.pem")
    return {"FOREBAY_TOKEN_FILE": str(folder / "token"), "FOREBAY_TLS_CERT": str(folder / "leaf.pem"),
            "FOREBAY_TLS_KEY": str(folder / "key.pem"), "FOREBAY_TLS_CA": str(folder / "ca.pem")}
