"""A process joins its cluster and starts TensorFlow's server."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.cluster.cluster_spec import Cluster, hosts_of
from keras_fastnet.cluster.finding import Membership, check_nothing_ran
from keras_fastnet.cluster.rendezvous import meet
from keras_fastnet.cluster.start_watchdog import end_if_stuck
from keras_fastnet.version import __version__

# TensorFlow's servers connect within seconds; GPUs may take longer to be set up.
_LEAST_CONNECT_SECONDS = 60.0
# Ranks with the same value share a machine, whatever their addresses: pods, containers.
_NODE = "FASTNET_NODE"


def join(membership: Membership, start_timeout: float) -> list[str]:
    """Meets the other workers and makes their random streams agree.

    Args:
        membership: The cluster.
        start_timeout: Seconds within which all workers must have started.

    Returns:
        The node of each worker, by rank: what `FASTNET_NODE` says there, or the host
        of its address.

    Raises:
        ClusterError: TensorFlow ran already, or the workers could not meet.
    """
    cluster = membership.cluster
    if cluster is None:
        return hosts_of(None)
    check_nothing_ran()
    seed = upstream.global_seed()
    facts = {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_fastnet": __version__,
        "tf.random seed": seed,
    }
    proposal = random.SystemRandom().randrange(2**31)
    node = os.environ.get(_NODE) or hosts_of(cluster)[cluster.rank]
    agreed, nodes = meet(cluster, facts, proposal, start_timeout, node)
    if cluster.rank == 0 and cluster.size > 1:
        print(f"fastnet: {_found(membership, nodes)}", flush=True)
    if seed is None and cluster.size > 1:
        # Unseeded shuffles and initial weights must not differ between workers.
        keras.utils.set_random_seed(agreed)
        # A seed of TensorFlow's would repeat an epoch's augmentation in the next.
        tf.random.set_seed(None)
        upstream.seed_datasets(agreed)
    return nodes


def _found(membership: Membership, nodes: list[str]) -> str:
    hosts = len(set(nodes))
    return (
        f"{len(nodes)} workers on {hosts} host{'s' if hosts > 1 else ''}, found by "
        f"{membership.source}"
    )


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
