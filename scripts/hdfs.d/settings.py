"""Hadoop's settings: the files in DIR/conf, for servers and clients, and the options of each command line."""
from pathlib import Path
from xml.sax.saxutils import escape

SERVICE = "forebay"
REALM = "FOREBAY.TEST"

LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.logger.BlockStateChange=WARN
log4j.logger.SecurityLogger=WARN
"""


def core_site(cluster):
    """The address of the file system and how to log in."""
    settings = {
        "fs.defaultFS": cluster.url,
        "hadoop.tmp.dir": cluster.dir / "tmp",
        "fs.permissions.umask-mode": "022",
        # A NameNode that restarts is found again quickly.
        "ipc.client.connect.retry.interval": 200,
        "ipc.client.connect.max.retries": 100,
        # A df now and then, rather than a du process per folder.
        "fs.getspaceused.classname": "org.apache.hadoop.fs.DFCachingGetSpaceUsed",
    }
    if cluster.secure:
        settings |= {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "true",
            "hadoop.rpc.protection": cluster.protection,
        }
    return settings


def hdfs_site(cluster):
    """Small blocks, and a NameNode that notices within seconds what production notices within minutes."""
    # Hadoop's default is 3. It also says how long the recovery of a block may take before a NameNode begins it anew: 30 times as long.
    heartbeat = 1 if cluster.dead_after < 60 else 3
    settings = {
        "dfs.replication": cluster.replication,
        "dfs.blocksize": cluster.block_size,
        "dfs.namenode.fs-limits.min-block-size": 512,
        "dfs.permissions.enabled": "true",
        "dfs.namenode.safemode.extension": 0,
        # Dead after 2 * recheck + 10 * heartbeat.
        "dfs.heartbeat.interval": heartbeat,
        "dfs.namenode.heartbeat.recheck-interval": (cluster.dead_after - 10 * heartbeat) * 500,
        "dfs.namenode.redundancy.interval.seconds": 1,
        "dfs.blockreport.initialDelay": 0,
        "dfs.datanode.scan.period.hours": -1,
        "dfs.datanode.du.reserved": 0,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        # A power cut may lose the last edits; a killed process loses none.
        "dfs.namenode.edits.noeditlogchannelflush": "true",
        "dfs.namenode.handler.count": 6,
        "dfs.client.read.shortcircuit": "false",
    }
    if cluster.ha:
        names = ",".join(f"nn{i}" for i in (1, 2))
        settings |= {
            "dfs.nameservices": SERVICE,
            f"dfs.ha.namenodes.{SERVICE}": names,
            f"dfs.client.failover.proxy.provider.{SERVICE}":
                "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider",
            "dfs.namenode.shared.edits.dir": (cluster.dir / "shared-edits").as_uri(),
            "dfs.ha.automatic-failover.enabled": "false",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.tail-edits.period": "1s",
            "dfs.ha.log-roll.period": "2s",
        }
        for i in (1, 2):
            settings[f"dfs.namenode.rpc-address.{SERVICE}.nn{i}"] = cluster.address(f"namenode{i}", "rpc")
            settings[f"dfs.namenode.http-address.{SERVICE}.nn{i}"] = cluster.address(f"namenode{i}", "http")
    else:
        settings["dfs.namenode.rpc-address"] = cluster.address("namenode1", "rpc")
        settings["dfs.namenode.http-address"] = cluster.address("namenode1", "http")
    if cluster.secure:
        service = f"hdfs/localhost@{REALM}"
        keytab = cluster.dir / "krb5" / "hdfs.keytab"
        settings |= {
            "dfs.block.access.token.enable": "true",
            "dfs.namenode.kerberos.principal": service,
            "dfs.namenode.keytab.file": keytab,
            "dfs.datanode.kerberos.principal": service,
            "dfs.datanode.keytab.file": keytab,
            "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{REALM}",
            "dfs.web.authentication.kerberos.keytab": keytab,
            "dfs.data.transfer.protection": cluster.protection,
            # SASL on the data port, without a certificate for the HTTP port that nobody reads from.
            "ignore.secure.ports.for.testing": "true",
        }
    return settings


def node_settings(cluster, node):
    """What differs from one process to the next, given as -D on its command line."""
    data = cluster.dir / node
    if node.startswith("namenode"):
        number = node.removeprefix("namenode")
        settings = {"dfs.namenode.name.dir": data.as_uri()}
        if cluster.ha:
            settings["dfs.ha.namenode.id"] = f"nn{number}"
    else:
        listen = "0.0.0.0" if cluster.netns else "127.0.0.1"
        ports = cluster.ports[node]
        settings = {
            "dfs.datanode.data.dir": data.as_uri(),
            "dfs.datanode.address": f"{listen}:{ports['data']}",
            "dfs.datanode.ipc.address": f"{listen}:{ports['ipc']}",
            "dfs.datanode.http.address": f"{listen}:{ports['http']}",
        }
        if cluster.slow and node == "datanode1":
            settings["dfs.datanode.data.read.bandwidthPerSec"] = cluster.slow
        if cluster.netns:
            settings["dfs.datanode.hostname"] = cluster.datanode_host
    return settings


def write_conf(cluster):
    """DIR/conf: usable as HADOOP_CONF_DIR, and on the servers' class path."""
    conf = cluster.dir / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name, settings in (("core-site.xml", core_site(cluster)), ("hdfs-site.xml", hdfs_site(cluster))):
        body = "".join(
            f"  <property><name>{escape(key)}</name><value>{escape(str(value))}</value></property>\n"
            for key, value in settings.items()
        )
        (conf / name).write_text(f'<?xml version="1.0"?>\n<configuration>\n{body}</configuration>\n')
    (conf / "log4j.properties").write_text(LOG4J)
    Path(cluster.dir / "url").write_text(cluster.url + "\n")
