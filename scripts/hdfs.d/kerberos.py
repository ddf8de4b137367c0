"""The cluster's KDC: realm, principals and keytabs, all in DIR/krb5."""
import os
import socket
import subprocess
import time

from processes import fail, tail, tool
from settings import REALM

# Principals by keytab file in DIR/krb5.
KEYTABS = {"hdfs.keytab": ["hdfs/localhost", "HTTP/localhost", "hdfs"], "reader.keytab": ["reader"]}


def files(cluster):
    """Environment in which Kerberos' tools use this realm and not the machine's configuration."""
    home = cluster.dir / "krb5"
    return {"KRB5_CONFIG": f"{home}/krb5.conf", "KRB5_KDC_PROFILE": f"{home}/kdc.conf"}


def environment(cluster):
    """The same with the superuser's tickets, for Hadoop's commands."""
    return files(cluster) | {"KRB5CCNAME": f"FILE:{cluster.dir}/krb5/hdfs.ccache"}


def run(cluster, command, **how):
    done = subprocess.run([tool(command[0]), *command[1:]], env={**os.environ, **files(cluster)}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
    if done.returncode != 0:
        fail(f"{' '.join(command)} failed:\n{done.stdout}")
    return done.stdout


def create(cluster):
    """Makes the realm's files and database."""
    home = cluster.dir / "krb5"
    home.mkdir(mode=0o700, exist_ok=True)
    port = cluster.ports["kdc"]["kdc"]
    (home / "krb5.conf").write_text(f"""\
[libdefaults]
    default_realm = {REALM}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{port}
    }}
[domain_realm]
    localhost = {REALM}
""")
    (home / "kdc.conf").write_text(f"""\
[realms]
    {REALM} = {{
        database_name = {home}/principal
        key_stash_file = {home}/stash
        acl_file = {home}/kadm5.acl
        kdc_listen = 127.0.0.1:{port}
        kdc_tcp_listen = 127.0.0.1:{port}
        supported_enctypes = aes256-cts-hmac-sha1-96:normal
    }}
""")
    (home / "kadm5.acl").write_text("")
    run(cluster, ["kdb5_util", "create", "-r", REALM, "-s", "-P", os.urandom(16).hex()])
    queries = []
    for keytab, principals in KEYTABS.items():
        queries += [f"add_principal -randkey {p}" for p in principals]
        queries.append(f"ktadd -q -k {home}/{keytab} {' '.join(principals)}")
    output = run(cluster, ["kadmin.local", "-r", REALM], input="\n".join(queries) + "\n")
    lacking = [k for k in KEYTABS if not (home / k).is_file()]
    if lacking:
        fail(f"kadmin.local made no {lacking}:\n{output}")


def start(cluster):
    """Starts the KDC, waits until it answers, and gets the superuser's tickets."""
    process = cluster.pid_file("kdc")
    if process.pid() is None:
        process.start([tool("krb5kdc"), "-n", "-r", REALM], cluster.log("kdc"), {**os.environ, **files(cluster)})
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", cluster.ports["kdc"]["kdc"]), 1).close()
            break
        except OSError as error:
            if process.pid() is None or time.monotonic() > end:
                print(tail(cluster.log("kdc")), end="")
                fail(f"the KDC does not answer: {error} (its log's tail is above)")
            time.sleep(0.05)
    home = cluster.dir / "krb5"
    run(cluster, ["kinit", "-c", f"{home}/hdfs.ccache", "-k", "-t", f"{home}/hdfs.keytab", "hdfs"])
