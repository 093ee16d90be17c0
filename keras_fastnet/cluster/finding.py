"""Which cluster a process belongs to: the one place that decides."""

import dataclasses
import os
import socket
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.cluster.cluster_spec import Cluster, make_cluster, read_tf_config
from keras_fastnet.cluster.environment import scheduler_places
from keras_fastnet.cluster.gpus import take_gpus
from keras_fastnet.cluster.kubernetes import (
    check_workers_are_counted,
    kubernetes_addresses,
)
from keras_fastnet.cluster.mpi_environment import (
    mpi4py_is_installed,
    started_by_mpi,
)
from keras_fastnet.cluster.mpi_world import MpiWorld
from keras_fastnet.cluster.place import Place
from keras_fastnet.cluster.slurm import (
    slurm_addresses,
    slurm_place,
    tasks_without_step,
)
from keras_fastnet.cluster.slurm_gpus import own_gpus
from keras_fastnet.errors import ClusterError

_RESOLVER = "the `cluster_resolver`"


@dataclasses.dataclass(frozen=True)
class Membership:
    """The cluster that a process belongs to.

    Attributes:
        cluster: Its addresses and this rank; `None` where there is no cluster.
        source: Who described it, for people.
        resolver: What tells TensorFlow of it; `None` for the variable `TF_CONFIG`.
        mpi: The processes as MPI knows them; `None` where it did not start them, or
            is not needed.
    """

    cluster: Cluster | None
    source: str
    resolver: Any = None
    mpi: MpiWorld | None = None


def find_cluster(resolver: Any, transport: str) -> Membership:
    """Finds the checked cluster that this process belongs to.

    The first of these counts: the resolver, `TF_CONFIG`, MPI, Slurm, a Kubernetes
    Indexed Job. Those that say something else beside it are refused.

    Args:
        resolver: A `tf.distribute.cluster_resolver.ClusterResolver`, or `None`.
        transport: `"mpi"`, `"tensorflow"` or `"auto"`.

    Returns:
        The cluster.

    Raises:
        ClusterError: It is described wrongly, or in two ways.
    """
    described = _described(resolver)
    places = scheduler_places(os.environ)
    if transport == "mpi" and not started_by_mpi():
        raise ClusterError(
            '`transport="mpi"` needs several processes that MPI started. '
            "Received: a process that it did not start, or started alone. Run "
            "`mpiexec -n 4 python train.py` or `fastnet run --transport mpi "
            "--workers 4 train.py`."
        )
    if described is not None and described.cluster is not None:
        cluster = described.cluster
        _check_same(Place(described.source, cluster.rank, cluster.size), places)
    elif places:
        _check_same(places[0], places[1:])
    _take_own_gpus(os.environ, places)
    if _goes_by_mpi(described, places, transport):
        return _by_mpi(described)
    if described is not None:
        return described
    if not places:
        check_workers_are_counted(os.environ)
        _warn_of_missing_step(os.environ)
        return Membership(None, "one process")
    return _by_scheduler(os.environ, places[0])


def _described(resolver: Any) -> Membership | None:
    """What the resolver or `TF_CONFIG` says."""
    by_variable = read_tf_config()
    if resolver is None:
        if by_variable is None:
            return None
        return Membership(by_variable, "TF_CONFIG")
    jobs = resolver.cluster_spec().as_dict()
    cluster = make_cluster(jobs, resolver.task_type, resolver.task_id) if jobs else None
    if by_variable not in (None, cluster):
        raise ClusterError(
            f"TF_CONFIG and {_RESOLVER} must not describe different clusters. "
            f"Received: {_named(by_variable)} in TF_CONFIG, and {_named(cluster)} from "
            "the resolver. Unset TF_CONFIG, or leave `cluster_resolver` out."
        )
    return Membership(cluster, _RESOLVER, resolver)


def _named(cluster: Cluster | None) -> str:
    if cluster is None:
        return "one process"
    return f"rank {cluster.rank} of {', '.join(cluster.addresses[:4])}" + (
        f" and {cluster.size - 4} more" if cluster.size > 4 else ""
    )


def _check_same(found: Place, others: list[Place]) -> None:
    for other in others:
        if (other.rank, other.size) != (found.rank, found.size):
            raise ClusterError(
                "All who describe the cluster must describe the same. Received: "
                f"{found}, and {other}. Under Slurm start the workers with `srun` "
                "alone, without `fastnet run`, and under Kubernetes as the pods "
                "themselves; or unset the variables of the one that is wrong "
                "(TF_CONFIG, SLURM_PROCID, FASTNET_WORKERS)."
            )


def _goes_by_mpi(
    described: Membership | None, places: list[Place], transport: str
) -> bool:
    if not started_by_mpi():
        return False
    known = (described is not None and described.cluster is not None) or bool(places)
    if transport == "tensorflow":
        return not known
    # Slurm's `srun` looks like MPI to those who do not use it, too.
    return transport == "mpi" or not known or mpi4py_is_installed()


def _by_mpi(described: Membership | None) -> Membership:
    check_nothing_ran()
    world = MpiWorld()
    take_gpus(world.own_gpus(len(tf.config.get_visible_devices("GPU"))))
    cluster = described.cluster if described is not None else None
    if described is None or cluster is None:
        cluster = world.cluster()
        world.announce()
        return Membership(cluster, "MPI", resolver_of(cluster), world)
    if (cluster.rank, cluster.size) != (world.rank, world.size):
        raise ClusterError(
            "MPI and TF_CONFIG, or the `cluster_resolver`, must describe the same "
            f"cluster. Received: rank {world.rank} of {world.size} from MPI and rank "
            f"{cluster.rank} of {cluster.size}. Unset TF_CONFIG to go by MPI, or "
            "start the processes without it."
        )
    return dataclasses.replace(described, mpi=world)


def _by_scheduler(environment: Mapping[str, str], place: Place) -> Membership:
    if slurm_place(environment) is not None:
        addresses = slurm_addresses(environment, place)
    else:
        addresses = kubernetes_addresses(environment, place, socket.getfqdn())
    cluster = make_cluster({"worker": addresses}, "worker", place.rank)
    return Membership(cluster, place.source, resolver_of(cluster))


def _warn_of_missing_step(environment: Mapping[str, str]) -> None:
    tasks = tasks_without_step(environment)
    if tasks > 1:
        # The usual slip in an sbatch script.
        print(
            f"fastnet: one process, although Slurm's job has {tasks} tasks: start them "
            "with `srun python train.py`",
            flush=True,
        )


def _take_own_gpus(environment: Any, places: list[Place]) -> None:
    """Before TensorFlow looks for GPUs."""
    if places and slurm_place(environment) is not None:
        gpus = own_gpus(environment)
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpus


def resolver_of(cluster: Cluster) -> Any:
    """Returns what tells TensorFlow of a cluster.

    Args:
        cluster: The cluster.
    """
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        # Without it TensorFlow would use no GPU.
        num_accelerators={"GPU": len(tf.config.get_visible_devices("GPU"))},
        rpc_layer="grpc",
    )


def check_nothing_ran() -> None:
    """Refuses to form a cluster where TensorFlow has run an operation.

    Raises:
        ClusterError: It has.
    """
    if upstream.tensorflow_has_run():
        raise ClusterError(
            "A cluster can be formed only before TensorFlow runs its first operation. "
            "Received: TensorFlow has run already. Create the `TorusStrategy` at the "
            "start of the program, before any tensor, variable, layer or dataset."
        )


def check_described_in_time(membership: Membership) -> None:
    """Refuses to train alone where TF_CONFIG now says otherwise.

    Args:
        membership: What was found when the strategy was made.

    Raises:
        ClusterError: It describes a cluster of several workers.
    """
    if membership.cluster is not None or membership.resolver is not None:
        return
    now = read_tf_config()
    if now is not None and now.size > 1:
        raise ClusterError(
            "TF_CONFIG must be set before the strategy is made. Received: a cluster of "
            f"{now.size} workers, described after the strategy was made; this one "
            "would train alone. Set TF_CONFIG at the start of the program, or from "
            "outside."
        )
