"""Ranks and addresses of the tasks of a Slurm step, which `srun` starts.

TensorFlow's `SlurmClusterResolver` can be passed as `cluster_resolver`. It is not the
default because it sorts hosts as text (n10 before n2), which assigns addresses to the
wrong ranks, and because it fails on nodes without GPUs.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

from keras_fastnet.cluster.variables import ProcessRank, integer_variable
from keras_fastnet.errors import ClusterError

# Commas within brackets belong to the host.
_HOST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
# Above Slurm's own limit.
_MOST = 1 << 20
# Linux uses no port from 20,000 to 32,767 for outgoing connections. The number of slots
# is prime; a slot has as many ports as most nodes have tasks.
_FIRST_PORT, _HIGHEST_PORT = 20_000, 65_535
_SLOTS, _WIDTH = 199, 64
# About half the slots, so that step 1 of a job is far from step 0 of the next job.
_STEP = 100


def slurm_rank(environment: Mapping[str, str]) -> ProcessRank | None:
    """Returns a task's rank; `None` outside a step of several tasks.

    An sbatch script itself runs outside any step: `srun` creates one.

    Args:
        environment: The environment variables.
    """
    rank = environment.get("SLURM_PROCID", "")
    size = environment.get("SLURM_STEP_NUM_TASKS", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    job, step = (
        environment.get(name, "?") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return ProcessRank(f"Slurm (job {job}, step {step})", int(rank), int(size))


def tasks_without_step(environment: Mapping[str, str]) -> int:
    """Returns the number of tasks of the job outside a step; 0 within one.

    Args:
        environment: The environment variables.
    """
    tasks = environment.get("SLURM_NTASKS", "")
    in_step = "SLURM_STEP_NUM_TASKS" in environment
    return int(tasks) if tasks.isdecimal() and not in_step else 0


def slurm_addresses(environment: Mapping[str, str], own: ProcessRank) -> list[str]:
    """Returns `host:port` of a step's tasks, by rank.

    Args:
        environment: The environment variables of a task.
        own: The task's rank.

    Raises:
        ClusterError: If the variables do not say where the tasks run.
    """
    hosts = _expand_hosts(environment.get("SLURM_STEP_NODELIST", ""))
    counts = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    nodes = _nodes_of_tasks(
        counts,
        environment.get("SLURM_DISTRIBUTION", ""),
        environment.get("SLURM_DIST_PLANESIZE", ""),
    )
    if len(nodes) != own.size or len(hosts) != len(counts):
        raise ClusterError(
            "Slurm's variables must describe one step. Received: "
            f"SLURM_STEP_NUM_TASKS={own.size}, but {len(nodes)} tasks in "
            f"SLURM_STEP_TASKS_PER_NODE, and {len(hosts)} hosts for {len(counts)} "
            "numbers of tasks. Start the workers with `srun`, and do not set the "
            "variables yourself."
        )
    on_node = [itertools.count() for _ in hosts]
    local = [next(on_node[node]) for node in nodes]
    computed = str(nodes[own.rank]), str(local[own.rank])
    stated = tuple(environment.get(f"SLURM_{n}", "?") for n in ("NODEID", "LOCALID"))
    if computed != stated:
        raise ClusterError(
            "Slurm's variables must tell where each task runs. Received: task "
            f"{stated[1]} of node {stated[0]} for rank {own.rank}, which by "
            "SLURM_STEP_TASKS_PER_NODE and SLURM_DISTRIBUTION is task "
            f"{computed[1]} of node {computed[0]}. Start the workers with `srun "
            "--distribution=block`."
        )
    first = _first_port(environment, max(counts))
    return [
        f"{hosts[node]}:{first + index}"
        for node, index in zip(nodes, local, strict=True)
    ]


def _first_port(environment: Mapping[str, str], tasks: int) -> int:
    """Returns the port of each node's first task in a Slurm step.

    It is `FASTNET_PORT` if that is set, otherwise computed from the numbers of job and
    step: 199 consecutive jobs have different ports.
    """
    most = _HIGHEST_PORT + 1 - tasks
    first = integer_variable(environment, "FASTNET_PORT", most, _FIRST_PORT)
    if first is not None:
        return first
    job, step = (
        int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return _FIRST_PORT + (job + _STEP * step) % _SLOTS * _WIDTH


def _expand_hosts(text: str) -> list[str]:
    """Returns the hosts of a list such as `n[1-2,07],gpu[1-2]-[3-4]`, in its order.

    TensorFlow's own function does not support several brackets in one name.
    """
    hosts: list[str] = []
    for item in _split(text, _HOST):
        choices = [
            _expand_ranges(piece[1], text) if piece[1] is not None else [piece[2]]
            for piece in _PIECE.finditer(item)
        ]
        hosts += map("".join, itertools.product(*choices))
    return hosts


def expand_counts(text: str) -> list[int]:
    """Returns the numbers of a list such as `3(x2),1`, which is 3, 3, 1.

    Args:
        text: The list.

    Raises:
        ClusterError: If `text` is not such a list.
    """
    counts: list[int] = []
    for item in _split(text, _COUNT):
        found = _COUNT.fullmatch(item)
        if found is None or int(found[2] or 1) > _MOST:
            raise _unreadable(text)
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _nodes_of_tasks(counts: Sequence[int], distribution: str, plane: str) -> list[int]:
    """Returns the node of each task, by rank, from the number of tasks of each node."""
    # The part after the first colon or comma is about sockets and cores.
    kind = re.split("[:,]", distribution.lower())[0]
    together = {"": max(counts), "*": max(counts), "block": max(counts), "cyclic": 1}
    if plane.isdecimal() and int(plane):
        together["plane"] = int(plane)
    if kind not in together:
        raise ClusterError(
            "Slurm must distribute the tasks by `block`, `cyclic` or `plane`. "
            f"Received: SLURM_DISTRIBUTION={distribution!r}. Start them with "
            "`srun --distribution=block`."
        )
    left = list(counts)
    nodes: list[int] = []
    while any(left):
        for node, tasks in enumerate(left):
            taken = min(tasks, together[kind])
            nodes += [node] * taken
            left[node] -= taken
    return nodes


def _split(text: str, item: re.Pattern[str]) -> list[str]:
    items = [found[0] for found in item.finditer(text)]
    if not items or ",".join(items) != text:
        raise _unreadable(text)
    return items


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if not 0 <= int(last) - int(first) < _MOST:
            raise _unreadable(text)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _unreadable(text: str) -> ClusterError:
    return ClusterError(
        "Slurm's variables must hold lists of hosts and of numbers of tasks. Received: "
        f"{text!r}. Start the workers with `srun`; if `srun` set this value, describe "
        "the cluster by TF_CONFIG."
    )
