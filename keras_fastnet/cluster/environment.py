"""Who started this process as one of several, without loading TensorFlow."""

import json
import os
from collections.abc import Mapping

from keras_fastnet.cluster.kubernetes import kubernetes_place
from keras_fastnet.cluster.mpi_environment import (
    rank_in,
    size_in,
    started_by_mpi,
)
from keras_fastnet.cluster.place import Place
from keras_fastnet.cluster.slurm import slurm_place
from keras_fastnet.errors import ClusterError

# In the processes that Ray starts.
_RAY = "RAY_RAYLET_PID"


def scheduler_places(environment: Mapping[str, str]) -> list[Place]:
    """Returns what Slurm and Kubernetes say of this process, in this order.

    Their variables are inherited. Ray's workers have those of the daemon that started
    them, and so have the ranks of `mpiexec`, which may start its own daemons by `srun`.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: A variable is wrong.
    """
    if _RAY in environment:
        return []
    slurm = slurm_place(environment)
    if slurm is not None and not _same_in_mpi(environment, slurm):
        slurm = None
    found = (slurm, kubernetes_place(environment))
    return [place for place in found if place is not None]


def in_a_cluster(environment: Mapping[str, str] = os.environ) -> bool:
    """Tells whether this process was started as one of several.

    Args:
        environment: The environment variables.

    Raises:
        ClusterError: A variable is wrong.
    """
    return (
        bool(environment.get("TF_CONFIG"))
        or started_by_mpi(environment)
        or bool(scheduler_places(environment))
    )


def who_started(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns who started this process together with others; `None` for no one.

    Unlike `in_a_cluster` it raises nothing, and counts the workers of `TF_CONFIG`.

    Args:
        environment: The environment variables.
    """
    if _workers_of_tf_config(environment) > 1:
        return "TF_CONFIG"
    try:
        places = scheduler_places(environment)
    except ClusterError:
        return None
    if places:
        return places[0].source
    return "MPI" if started_by_mpi(environment) else None


def _workers_of_tf_config(environment: Mapping[str, str]) -> int:
    try:
        jobs = json.loads(environment.get("TF_CONFIG", "{}"))["cluster"]
        return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        # What is wrong there is said where a strategy is made.
        return 0


def _same_in_mpi(environment: Mapping[str, str], place: Place) -> bool:
    rank, size = rank_in(environment), size_in(environment)
    return rank in (None, place.rank) and size in (None, place.size)
