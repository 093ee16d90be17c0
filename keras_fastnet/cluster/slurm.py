"""The tasks of a Slurm step, as `srun` starts them.

TensorFlow's `SlurmClusterResolver` serves where it is given as `cluster_resolver`. It
is not used by itself: it sorts hosts as text (n10 before n2), so that ranks and
addresses do not belong together, and fails on nodes without GPUs.
"""

import itertools
from collections.abc import Mapping

from keras_fastnet.cluster.place import Place
from keras_fastnet.cluster.slurm_layout import (
    expand_counts,
    expand_hosts,
    nodes_of_tasks,
)
from keras_fastnet.cluster.slurm_ports import ports_on_a_node
from keras_fastnet.errors import ClusterError


def slurm_place(environment: Mapping[str, str]) -> Place | None:
    """Returns a task's place; `None` outside of a step of several tasks.

    In an sbatch script itself there is no step: `srun` makes one.

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
    return Place(f"Slurm (job {job}, step {step})", int(rank), int(size))


def tasks_without_step(environment: Mapping[str, str]) -> int:
    """Returns how many tasks a job has of which this process is none; 0 in a step.

    Args:
        environment: The environment variables.
    """
    tasks = environment.get("SLURM_NTASKS", "")
    in_step = "SLURM_STEP_NUM_TASKS" in environment
    return int(tasks) if tasks.isdecimal() and not in_step else 0


def slurm_addresses(environment: Mapping[str, str], place: Place) -> list[str]:
    """Returns `host:port` of a step's tasks, by rank.

    Args:
        environment: The environment variables of a task.
        place: The task's place.

    Raises:
        ClusterError: The variables do not say where the tasks are.
    """
    hosts = expand_hosts(environment.get("SLURM_STEP_NODELIST", ""))
    counts = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    plane = environment.get("SLURM_DIST_PLANESIZE", "")
    nodes = nodes_of_tasks(
        counts,
        environment.get("SLURM_DISTRIBUTION", ""),
        int(plane) if plane.isdecimal() else None,
    )
    if len(nodes) != place.size or len(hosts) != len(counts):
        raise ClusterError(
            "Slurm's variables must describe one step. Received: "
            f"SLURM_STEP_NUM_TASKS={place.size}, but {len(nodes)} tasks in "
            f"SLURM_STEP_TASKS_PER_NODE, and {len(hosts)} hosts for {len(counts)} "
            "numbers of tasks. Start the workers with `srun`, and do not set the "
            "variables yourself."
        )
    on_node = [itertools.count() for _ in hosts]
    local = [next(on_node[node]) for node in nodes]
    _check_own(environment, place.rank, hosts, nodes, local)
    ports = ports_on_a_node(environment, max(counts))
    return [
        f"{hosts[node]}:{ports[index]}"
        for node, index in zip(nodes, local, strict=True)
    ]


def _check_own(
    environment: Mapping[str, str],
    rank: int,
    hosts: list[str],
    nodes: list[int],
    local: list[int],
) -> None:
    """What is computed here for all ranks must hold for this one."""
    mine = (str(nodes[rank]), str(local[rank]))
    said = tuple(environment.get(f"SLURM_{n}", "?") for n in ("NODEID", "LOCALID"))
    if mine != said:
        raise ClusterError(
            "Slurm's variables must tell where each task runs. Received: task "
            f"{said[1]} of node {said[0]} for rank {rank}, which by "
            f"SLURM_STEP_TASKS_PER_NODE and SLURM_DISTRIBUTION is task {mine[1]} of "
            f"node {mine[0]} ({hosts[nodes[rank]]}). Start the workers with `srun "
            "--distribution=block`."
        )
