"""Sets up a real Slurm of two nodes on this machine, and takes it down.

It needs Debian's packages `slurm-wlm` and `munge`, `iproute2` and root. Nodes, and the
host that sends jobs, are network namespaces: the machine and its Slurm do not change.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster.network import NamedHosts

NODES = ("fast9", "fast10")
"""Sorted as text, the second would be first."""
GPUS_ON_A_NODE = 4
_CONTROL = len(NODES)
_START_SECONDS = 60.0

_CONFIGURATION = """\
ClusterName=fastnet
SlurmctldHost=control({control})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job starts when its first start's credential has expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
# Nodes have more CPUs here than the machine.
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4
"""


class Slurm:
    """A running Slurm of two nodes, whose files and logs are in `folder`."""

    def __init__(self, folder: Path, hosts: NamedHosts):
        self.folder = folder
        self._hosts = hosts

    def run(
        self, *words: str, timeout: float = 60.0, **variables: str
    ) -> subprocess.CompletedProcess:
        """Runs one of Slurm's commands, with variables, where jobs are sent from."""
        pairs = {"SLURM_CONF": str(self.folder / "slurm.conf"), **variables}
        set_variables = ["env", *(f"{k}={v}" for k, v in pairs.items())]
        return subprocess.run(
            [*self._hosts.wrapper(_CONTROL), *set_variables, *words],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def states(self, job: str) -> str:
        """Returns a job's state, such as `RUNNING`; empty for one that has gone."""
        return self.run("squeue", "-h", "-j", job, "-o", "%T").stdout.strip()


@contextlib.contextmanager
def slurm() -> Iterator[Slurm]:
    """Sets Slurm up with idle nodes, and takes it down with all its jobs.

    An `OSError` says what is missing where it cannot be set up.
    """
    for tool in ("slurmctld", "slurmd", "munged"):
        if shutil.which(tool) is None:
            raise OSError(f"{tool} is missing: `apt-get install slurm-wlm munge`")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        folder.chmod(0o755)
        hosts = NamedHosts([*NODES, "control"], folder)
        stack.callback(hosts.remove)
        _configure(folder, hosts)
        started: list[subprocess.Popen] = []
        stack.callback(_end, started)
        for host, command in _daemons(folder):
            log = folder / f"{command[0]}-{host}.log"
            started.append(hosts.start(host, command, _environment(), log))
        cluster = Slurm(folder, hosts)
        _wait_until_idle(cluster, started)
        stack.callback(cluster.run, "scancel", "--full", "--signal=KILL", "--user=root")
        yield cluster


def _environment() -> Mapping[str, str]:
    # This may itself run in a job.
    return {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}


def _configure(folder: Path, hosts: NamedHosts) -> None:
    nodes = [
        f"NodeName={name} NodeAddr={hosts.address(i)} CPUs=8 Gres=gpu:{GPUS_ON_A_NODE}"
        for i, name in enumerate(NODES)
    ]
    configuration = _CONFIGURATION.format(
        control=hosts.address(_CONTROL), folder=folder, nodes="\n".join(nodes)
    )
    (folder / "slurm.conf").write_text(configuration)
    # It insists on cgroups of the machine otherwise.
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nCgroupPlugin=cgroup/v1\n")
    (folder / "gres.conf").write_text(
        f"Name=gpu File=/dev/tty[0-{GPUS_ON_A_NODE - 1}] Flags=nvidia_gpu_env\n"
    )
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def _daemons(folder: Path) -> Iterator[tuple[int, list[str]]]:
    munge = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
    munge |= {"log-file": "log", "seed-file": "seed"}
    files = [f"--{option}={folder}/munge.{end}" for option, end in munge.items()]
    yield _CONTROL, ["munged", "--foreground", "--force", *files]
    configuration = ["-D", "-f", str(folder / "slurm.conf")]
    yield _CONTROL, ["slurmctld", *configuration]
    for host in range(len(NODES)):
        yield host, ["slurmd", *configuration]


def _wait_until_idle(cluster: Slurm, daemons: list[subprocess.Popen]) -> None:
    end = time.monotonic() + _START_SECONDS
    while cluster.run("sinfo", "-h", "-N", "-o", "%t").stdout.split() != (
        ["idle"] * len(NODES)
    ):
        ended = any(process.poll() is not None for process in daemons)
        if ended or time.monotonic() > end:
            logs = [
                f"{path.name}: {path.read_text(errors='replace')[-500:]}"
                for path in sorted(cluster.folder.glob("*.log"))
            ]
            raise OSError("Slurm does not start here:\n" + "\n".join(logs))
        time.sleep(0.2)


def _end(daemons: list[subprocess.Popen]) -> None:
    """Ends daemons, jobs first: slurmd leaves their processes alone."""
    for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for process in reversed(daemons):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        end = time.monotonic() + seconds
        for process in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
