"""slurm.conf and gres.conf of a cluster whose nodes are all this machine."""
import getpass
import socket

GPUS = ["/dev/null", "/dev/zero"]


def address(number):
    """Each node has a loopback address of its own, so that two nodes are two hosts to what runs on them."""
    return f"127.0.0.{11 + number}"


def write_conf(cluster):
    host = socket.gethostname()
    folder = cluster.dir
    user = getpass.getuser()
    lines = [
        "ClusterName=forebay",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={cluster.ports['slurmctld']}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.sock",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"TmpFS={folder}/tmp/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.own.pid",
        f"SlurmdPidFile={folder}/run/%n.own.pid",
        f"SlurmctldLogFile={folder}/logs/slurmctld.log",
        f"SlurmdLogFile={folder}/logs/%n.log",
        # What production takes from cgroups is not there for all nodes of one machine.
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        # Else a job takes all memory of its node.
        "DefMemPerCPU=250",
        # Nodes claim more cores than the machine has.
        "SlurmdParameters=config_overrides",
        "GresTypes=gpu",
        "JobRequeue=1",
        # A node that comes back is used again.
        "ReturnToService=2",
        # Minutes in production.
        "SlurmctldTimeout=10",
        "SlurmdTimeout=10",
        "KillWait=5",
        "SchedulerParameters=bf_interval=2,sched_min_interval=100000",
    ]
    for number, node in enumerate(cluster.nodes):
        gres = f" Gres=gpu:{len(GPUS)}" if node.startswith("gpu") else ""
        # cpu nodes are lighter than gpu0, so the partition cpu fills them first.
        weight = 10 if node.startswith("gpu") else 1
        lines.append(f"NodeName={node} NodeAddr={address(number)} NodeHostname={host} Port={cluster.ports[node]} CPUs=8 "
                     f"RealMemory=4000 Weight={weight} Feature={node.rstrip('0123456789')}{gres}")
    cpus = [node for node in cluster.nodes if not node.startswith("ps")]
    for partition, nodes in {"ps": ["ps0"], "gpu": ["gpu0"], "cpu": cpus}.items():
        default = " Default=YES" if partition == "cpu" else ""
        lines.append(f"PartitionName={partition} Nodes={','.join(nodes)} MaxTime=INFINITE State=UP{default}")
    cluster.conf.parent.mkdir(parents=True, exist_ok=True)
    cluster.conf.write_text("\n".join(lines) + "\n")
    # Files that stand for the devices of GPUs: what a job sees of them is CUDA_VISIBLE_DEVICES.
    lines = [f"NodeName=gpu0 Name=gpu File={device}\n" for device in GPUS]
    (cluster.conf.parent / "gres.conf").write_text("".join(lines))
