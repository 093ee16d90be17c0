"""A process joins its cluster and starts TensorFlow's server."""

import contextlib
import dataclasses
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import keras_fastnet
from keras_fastnet._upstream import tensorflow as upstream
from keras_fastnet._upstream.keras_api import keras
from keras_fastnet.collectives.mpi_environment import (
    mpi4py_is_installed,
    started_by_mpi,
)
from keras_fastnet.errors import ClusterError
from keras_fastnet.strategies.cluster import Cluster, make_cluster, read_tf_config
from keras_fastnet.strategies.mpi_world import MpiWorld
from keras_fastnet.strategies.rendezvous import meet
from keras_fastnet.strategies.start_watchdog import end_if_stuck

# TensorFlow's servers connect within seconds; GPUs may take longer to be set up.
_LEAST_CONNECT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Membership:
    """The cluster that a process belongs to.

    Attributes:
        cluster: Its addresses and this rank; `None` where there is no cluster.
        resolver: What tells TensorFlow of it; `None` for the variable `TF_CONFIG`.
        mpi: The processes as MPI knows them; `None` where it did not start them, or
            is not needed.
    """

    cluster: Cluster | None
    resolver: Any = None
    mpi: MpiWorld | None = None


def find_cluster(resolver: Any, transport: str) -> Membership:
    """Finds the checked cluster that this process belongs to.

    A cluster that is described counts; where none is, MPI's processes form one.

    Args:
        resolver: A `tf.distribute.cluster_resolver.ClusterResolver`, or `None` for
            the environment variable `TF_CONFIG`.
        transport: `"mpi"`, `"tensorflow"` or `"auto"`.

    Returns:
        The cluster.

    Raises:
        ClusterError: It is described wrongly, or not as MPI knows it.
    """
    cluster = _described(resolver)
    if transport == "tensorflow" and cluster is not None:
        return Membership(cluster, resolver)
    if not started_by_mpi():
        if transport == "mpi":
            raise ClusterError(
                '`transport="mpi"` needs several processes that MPI started. '
                "Received: a process that it did not start, or started alone. Run "
                "`mpiexec -n 4 python train.py` or `fastnet run --transport mpi "
                "--workers 4 train.py`."
            )
        return Membership(cluster, resolver)
    if transport == "auto" and cluster is not None and not mpi4py_is_installed():
        # Slurm's `srun` looks like MPI to those who do not use it, too.
        return Membership(cluster, resolver)
    _check_nothing_ran()
    world = MpiWorld()
    if cluster is None:
        cluster = world.cluster()
        world.announce()
        return Membership(cluster, _resolver_of(cluster), world)
    if (cluster.rank, cluster.size) != (world.rank, world.size):
        raise ClusterError(
            "MPI and TF_CONFIG, or the `cluster_resolver`, must describe the same "
            f"cluster. Received: rank {world.rank} of {world.size} from MPI and rank "
            f"{cluster.rank} of {cluster.size}. Unset TF_CONFIG to go by MPI, or "
            "start the processes without it."
        )
    return Membership(cluster, resolver, world)


def _resolver_of(cluster: Cluster) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
        task_type="worker",
        task_id=cluster.rank,
        rpc_layer="grpc",
    )


def _described(resolver: Any) -> Cluster | None:
    if resolver is None:
        return read_tf_config()
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return None
    return make_cluster(jobs, resolver.task_type, resolver.task_id)


def _check_nothing_ran() -> None:
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


def join(cluster: Cluster, start_timeout: float) -> None:
    """Meets the other workers and makes their random streams agree.

    Args:
        cluster: The cluster.
        start_timeout: Seconds within which all workers must have started.

    Raises:
        ClusterError: TensorFlow ran already, or the workers could not meet.
    """
    _check_nothing_ran()
    seed = upstream.global_seed()
    facts = {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_fastnet": keras_fastnet.__version__,
        "tf.random seed": seed,
    }
    agreed = meet(cluster, facts, random.SystemRandom().randrange(2**31), start_timeout)
    if seed is None and cluster.size > 1:
        # Unseeded shuffles and initial weights must not differ between workers.
        keras.utils.set_random_seed(agreed)
        # A seed of TensorFlow's would repeat an epoch's augmentation in the next.
        tf.random.set_seed(None)
        upstream.seed_datasets(agreed)


@contextlib.contextmanager
def start_watched(cluster: Cluster | None, start_timeout: float) -> Iterator[None]:
    """Starts TensorFlow's server; ends the process where that hangs.

    The wait is in C++ and cannot be interrupted by an exception.

    Args:
        cluster: The cluster; `None` where there is none, and no server to wait for.
        start_timeout: Seconds that it may take, and at least a minute.
    """
    if cluster is None:
        yield
        return
    own_handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and own_handlers[signal.SIGINT] is signal.default_int_handler:
        # Python cannot act on Ctrl-C meanwhile, but the system can.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A short `start_timeout` says that workers start together, not that they are fast.
    seconds = max(start_timeout, _LEAST_CONNECT_SECONDS)
    try:
        with end_if_stuck(seconds, _stuck(cluster, seconds)):
            yield
    finally:
        for number, handler in own_handlers.items():
            if in_main_thread and handler is not None:
                # TensorFlow takes SIGTERM for a notice of preemption and goes on.
                signal.signal(number, handler)


def _stuck(cluster: Cluster, seconds: float) -> str:
    return (
        f"keras_fastnet: TensorFlow's servers must connect within {seconds:g} s once "
        f"all workers are there. Received: no end of it on rank {cluster.rank} "
        f"({cluster.address}), which is ended with SIGKILL. A worker may have died in "
        "this moment: look at the other workers' logs. A larger `start_timeout` "
        "allows more time."
    )
