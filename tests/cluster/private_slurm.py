"""A SLURM of this test's own on one machine's loopback: munged, slurmctld and a slurmd for each virtual node.

Neither root nor systemd nor cgroups are needed. Each node is an address 127.0.0.N, since a name would have to resolve.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "scancel")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
START_S = 30.0

CONFIGURATION = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
# A requeued job would wait for the credential of its first run to expire.
AuthInfo=socket={root}/munge.socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=30
"""


class NotStarted(Exception):
    """SLURM did not start; the message says which part, and the end of its log."""


def missing() -> list[str]:
    """The programs of SLURM and munge that this machine lacks."""
    return [name for name in NEEDED if shutil.which(name, path=SEARCH) is None]


class PrivateSlurm:
    """A cluster of `nodes` virtual machines. `root` holds its state, and must be a short path for munge's socket."""

    def __init__(self, root: Path, nodes: int = 2, cpus: int = 4) -> None:
        self.root = root
        self.nodes = [f"127.0.0.{number}" for number in range(1, nodes + 1)]
        self.environment = {"SLURM_CONF": str(root / "slurm.conf"), "PATH": SEARCH}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._configure(cpus)

    def _configure(self, cpus: int) -> None:
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(1 + len(self.nodes))
        text = CONFIGURATION.format(host=host, port=ports[0], user=getpass.getuser(), root=self.root)
        for name, port in zip(self.nodes, ports[1:], strict=True):
            where = f"NodeHostname={host} NodeAddr={name} Port={port}"
            text += f"NodeName={name} {where} CPUs={cpus} RealMemory=4000 State=UNKNOWN\n"
        everywhere = f"Nodes={','.join(self.nodes)} State=UP"
        text += f"PartitionName=main {everywhere} Default=YES MaxTime=INFINITE\n"
        text += f"PartitionName=short {everywhere} DefaultTime=1 MaxTime=1\n"
        (self.root / "slurm.conf").write_text(text, encoding="ascii")
        (self.root / "cgroup.conf").write_text(_cgroup_configuration(), encoding="ascii")
        self.root.chmod(0o755)  # munge wants its clients to reach its socket
        (self.root / "state").mkdir()
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def start(self) -> None:
        """Start all daemons and wait until each node is idle; raises `NotStarted`."""
        munge = {"key-file": "key", "socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self.root}/munge.{name}" for option, name in munge.items()]
        self._start("munged", "munged", "--foreground", *options)
        self._wait_for("munged", (self.root / "munge.socket").exists)
        self._start("slurmctld", "slurmctld", "-D", "-c")
        self._wait_for("slurmctld", lambda: "is UP" in self.output("scontrol", "ping"))
        for name in self.nodes:
            self._start(f"slurmd-{name}", "slurmd", "-D", "-N", name)
        self._wait_for(f"slurmd-{self.nodes[-1]}", self.idle)

    def idle(self) -> bool:
        """Whether each node is up and without work."""
        return self.output("sinfo", "-h", "-N", "-p", "main", "-o", "%t").split() == ["idle"] * len(self.nodes)

    def output(self, *command: str) -> str:
        """What a client command prints; nothing where it fails."""
        ran = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True)
        return ran.stdout if ran.returncode == 0 else ""

    def jobs(self, *options: str) -> list[str]:
        """Ids of the jobs that wait, run, or are being cleaned up."""
        return self.output("squeue", "-h", "-o", "%A", *options).split()

    def _start(self, daemon: str, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=SEARCH)
        assert path is not None
        with (self.root / f"{daemon}.output").open("ab") as output:
            self._daemons[daemon] = subprocess.Popen(
                [path, *arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _wait_for(self, daemon: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_S
        while not ready():
            if time.monotonic() > end or self._daemons[daemon].poll() is not None:
                log = (self.root / f"{daemon}.output").read_text(encoding="utf-8", errors="replace")
                raise NotStarted(f"{daemon} did not start: {log[-500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the jobs, then the daemons, munge last; by their own ids alone."""
        self.output("scancel", "--full", "--quiet", *self.jobs())
        end = time.monotonic() + START_S
        while self.jobs() and time.monotonic() < end:
            time.sleep(0.1)
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _cgroup_configuration() -> str:
    """No cgroups: older versions do not need to be told, and do not know the word."""
    shown = subprocess.run(["slurmd", "-V"], env={**os.environ, "PATH": SEARCH}, capture_output=True, text=True)
    version = tuple(int(part) for part in re.findall(r"\d+", shown.stdout)[:2])
    return "CgroupPlugin=disabled\n" if version >= (23, 2) else ""


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
