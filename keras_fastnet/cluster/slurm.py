"""Addresses of the tasks of a Slurm step, which `srun` starts.

TensorFlow's `SlurmClusterResolver` can be passed as `cluster_resolver`. It is not the
default because it sorts hosts as text (n10 before n2), which assigns addresses to the
wrong ranks, and because it fails on nodes without GPUs.
"""

import re
from collections.abc import Mapping

from keras_fastnet.cluster.environment import ProcessRank
from keras_fastnet.cluster.ports import FIRST_PORT
from keras_fastnet.errors import ClusterError

# `n[1-2,07]-ib` or `n1`; commas within brackets belong to the host.
_HOSTS = re.compile(r"([^,\[\]]+)(?:\[([0-9,-]+)\]([^,\[\]]*))?(?:,|$)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?(?:,|$)")
# The number of slots is prime; a slot has as many ports as most nodes have tasks.
_SLOTS, _WIDTH = 199, 64
# About half the slots, so that step 1 of a job is far from step 0 of the next job.
_STEP = 100


def slurm_addresses(environment: Mapping[str, str], own: ProcessRank) -> list[str]:
    """Returns `host:port` of a step's tasks, by rank.

    The nodes have their tasks one after another, as with Slurm's `block` distribution.

    Args:
        environment: The environment variables of a task.
        own: The task's rank.

    Raises:
        ClusterError: If the variables do not say where the tasks run, or Slurm has
            distributed them otherwise.
    """
    hosts = _expand_hosts(environment.get("SLURM_STEP_NODELIST", ""))
    counts = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    places = [(node, local) for node, n in enumerate(counts) for local in range(n)]
    stated = {
        name: environment.get(f"SLURM_{name}", "?")
        for name in ("NODEID", "LOCALID", "DISTRIBUTION", "STEP_TASKS_PER_NODE")
    }
    own_place = [(stated["NODEID"], stated["LOCALID"])]
    expected = [(str(node), str(local)) for node, local in places[own.rank :][:1]]
    sizes = len(places), len(counts)
    if own_place != expected or sizes != (own.size, len(hosts)):
        told = ", ".join(f"SLURM_{name}={text}" for name, text in stated.items())
        raise ClusterError(
            "Slurm's variables must describe one step, whose tasks are distributed by "
            f"`block`. Received: rank {own.rank} of {own.size} with {told}. Start the "
            "workers with `srun --distribution=block`, and do not set the variables "
            "yourself."
        )
    # 199 consecutive jobs have different ports.
    job, step = (
        int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    first = FIRST_PORT + (job + _STEP * step) % _SLOTS * _WIDTH
    return [f"{hosts[node]}:{first + local}" for node, local in places]


def _expand_hosts(text: str) -> list[str]:
    """Returns the hosts of a list such as `n[1-2,07],m5`, in its order."""
    hosts: list[str] = []
    for prefix, ranges, suffix in _items(text, _HOSTS):
        if not ranges:
            hosts.append(prefix)
            continue
        for part in ranges.split(","):
            found = _RANGE.fullmatch(part)
            if found is None:
                raise _unreadable(text)
            first, last = found[1], found[2] or found[1]
            numbers = range(int(first), int(last) + 1)
            hosts += [f"{prefix}{str(n).zfill(len(first))}{suffix}" for n in numbers]
    return hosts


def expand_counts(text: str) -> list[int]:
    """Returns the numbers of a list such as `3(x2),1`, which is 3, 3, 1.

    Args:
        text: The list.

    Raises:
        ClusterError: If `text` is not such a list.
    """
    counts: list[int] = []
    for tasks, nodes in _items(text, _COUNT):
        counts += [int(tasks)] * int(nodes or 1)
    return counts


def _items(text: str, item: re.Pattern[str]) -> list[tuple[str, ...]]:
    """Returns the parts of the items of a list that is nothing but such items."""
    if not text or text.endswith(",") or item.sub("", text):
        raise _unreadable(text)
    return item.findall(text)


def _unreadable(text: str) -> ClusterError:
    return ClusterError(
        "Slurm's variables must hold lists of hosts, such as n[1-2,07], and of numbers "
        f"of tasks. Received: {text!r}. Start the workers with `srun`; if `srun` set "
        "this value, describe the cluster by TF_CONFIG."
    )
