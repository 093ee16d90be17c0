"""Tells from environment variables whether this process is one of several workers."""

import json
import os
from collections.abc import Mapping

from keras_fastnet.cluster.kubernetes import kubernetes_rank
from keras_fastnet.cluster.mpi import mpi_rank, mpi_size, started_by_mpi
from keras_fastnet.cluster.slurm import slurm_rank
from keras_fastnet.cluster.variables import ProcessRank
from keras_fastnet.errors import ClusterError

# Set in the processes that Ray starts.
_RAY = "RAY_RAYLET_PID"


def scheduler_ranks(environment: Mapping[str, str]) -> list[ProcessRank]:
    """Returns this process's rank as Slurm and Kubernetes state it, in this order.

    Schedulers' variables are inherited: Ray's workers have those of the daemon that
    started them, and so have the ranks of `mpiexec`, which may start its daemons by
    `srun`. Such variables are ignored.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: If a variable is wrong.
    """
    if _RAY in environment:
        return []
    slurm = slurm_rank(environment)
    if slurm is not None and not _agrees_with_mpi(environment, slurm):
        slurm = None
    stated = (slurm, kubernetes_rank(environment))
    return [rank for rank in stated if rank is not None]


def in_a_cluster(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether this process was started as one of several.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: If a variable is wrong.
    """
    return (
        bool(environment.get("TF_CONFIG"))
        or started_by_mpi(environment)
        or bool(scheduler_ranks(environment))
    )


def who_started(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the name of the source that describes several workers; `None` if none.

    Unlike `in_a_cluster` it never raises, and ignores a `TF_CONFIG` of one worker.

    Args:
        environment: The environment variables.
    """
    if _workers_of_tf_config(environment) > 1:
        return "TF_CONFIG"
    try:
        ranks = scheduler_ranks(environment)
    except ClusterError:
        return None
    if ranks:
        return ranks[0].source
    return "MPI" if started_by_mpi(environment) else None


def _workers_of_tf_config(environment: Mapping[str, str]) -> int:
    try:
        jobs = json.loads(environment.get("TF_CONFIG", "{}"))["cluster"]
        return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        # The strategy reports what is wrong.
        return 0


def _agrees_with_mpi(environment: Mapping[str, str], stated: ProcessRank) -> bool:
    rank, size = mpi_rank(environment), mpi_size(environment)
    return rank in (None, stated.rank) and size in (None, stated.size)
