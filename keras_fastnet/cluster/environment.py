"""Tells from environment variables whether this process is one of several workers."""

import os
from collections.abc import Mapping

from keras_fastnet.cluster.kubernetes import kubernetes_rank
from keras_fastnet.cluster.mpi import mpi_rank, mpi_size, started_by_mpi
from keras_fastnet.cluster.slurm import slurm_rank
from keras_fastnet.cluster.variables import ProcessRank

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
    if slurm is not None and (
        mpi_rank(environment) not in (None, slurm.rank)
        or mpi_size(environment) not in (None, slurm.size)
    ):
        slurm = None
    stated = (slurm, kubernetes_rank(environment))
    return [rank for rank in stated if rank is not None]


def who_started(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the name of the source that describes a cluster; `None` if none does.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: If a variable is wrong.
    """
    if environment.get("TF_CONFIG"):
        return "TF_CONFIG"
    if started_by_mpi(environment):
        return "MPI"
    ranks = scheduler_ranks(environment)
    return ranks[0].source if ranks else None


def in_a_cluster() -> bool:
    """Returns whether this process was started as one of several.

    Raises:
        ClusterError: If a variable is wrong.
    """
    return who_started() is not None
