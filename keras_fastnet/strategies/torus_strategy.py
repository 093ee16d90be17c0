"""TorusStrategy: Keras 3's `model.fit` on several TensorFlow workers."""

import dataclasses
from contextlib import nullcontext
from typing import Any, Literal

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.adapters import install_changes
from keras_fastnet.arguments import checked_choice, checked_number
from keras_fastnet.cluster.discovery import (
    Membership,
    check_described_in_time,
    find_cluster,
)
from keras_fastnet.cluster.flight_recorder import FlightRecorder
from keras_fastnet.cluster.mpi import mpi4py_is_installed
from keras_fastnet.cluster.start import meet_workers, server_start
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.strategies.extended import FitStrategy
from keras_fastnet.strategies.fit_support import SCALAR_LOSSES, FitSupport
from keras_fastnet.strategies.memory import keep_freed_memory, let_memory_grow
from keras_fastnet.strategies.one_per_process import OnePerProcess
from keras_fastnet.strategies.reduction_options import check_options
from keras_fastnet.strategies.torus_extended import TorusExtended, describe
from keras_fastnet.text import count


class TorusStrategy(
    FitStrategy, tf.distribute.MultiWorkerMirroredStrategy, metaclass=OnePerProcess
):
    """Synchronous data-parallel training through Keras 3's own `fit`.

    Training on N workers gives the same weight updates as training on one device with
    the same global batch size. Pass the same data on every worker, exactly as you would
    on a single device: arrays, or a dataset of *global* batches, of which each replica
    takes its share.

    Create it at the start of the program: a cluster can be formed only before
    TensorFlow runs its first operation. Without a cluster it trains on the local
    devices. A process has one such strategy: a second call with the same arguments
    returns the first one.

    Gradients are summed over a grid of all replicas: reduce-scatter along the row,
    all-reduce along the column, all-gather along the row (Mikami et al. 2018, arXiv
    1811.05233, section 2.2). They are sent in buckets during the backward pass.

    Args:
        cluster_resolver: A `tf.distribute.cluster_resolver.ClusterResolver`.
            Defaults to `None`: the first of the environment variable `TF_CONFIG`, MPI
            and Slurm that describes a cluster.
        communication_options: `tf.distribute.experimental.CommunicationOptions`, for
            a time limit, or RING instead of NCCL on GPUs. Defaults to TensorFlow's.
        grid: The grid of replicas, `(rows, columns)`; `"ring"` for one ring over all
            of them; `"auto"` for one row per host or, if that is impossible, the grid
            of the lowest cost by the cost model, and for the faster of ring and torus
            for each bucket. Defaults to `"auto"`.
        wire_dtype: Dtype that `float32` values are rounded to for sending:
            `"bfloat16"` or `"float16"` (or TensorFlow's or NumPy's dtype of that
            name), for half the bytes. Sums are computed in `float32`. `float16`
            overflows at 65,504. Defaults to `None`: no rounding.
        bucket_bytes: Gradients are sent in buckets of this size. Defaults to
            `None`: `bytes_per_pack` of `communication_options`, if it is given, or
            16 MiB, or 64 MiB over NCCL.
        transport: Library that sends gradients and metrics: `"mpi"`, for processes
            started by `mpiexec`; `"tensorflow"`, TensorFlow's own collectives (gRPC,
            NCCL); or `"auto"`: MPI on CPUs if it started the processes, otherwise
            TensorFlow's. Defaults to `"auto"`.
        scalar_losses: Meaning of a scalar that a loss function returns: the `"mean"`
            over its examples, or their `"sum"`. Defaults to `"mean"`.
        start_timeout: Seconds within which all workers must have started.
            Defaults to `300.0`, which covers a container image being pulled.
        wait_timeout: Seconds that a worker waits for another one, for example in a
            sum, before it raises `ClusterError`. It must exceed the longest time that
            one worker spends alone, such as the chief in saving. Defaults to `600.0`.

    Raises:
        ClusterError: If the cluster is described wrongly, the port of this worker is
            taken, TensorFlow ran already, or a worker did not connect in time (raised
            at most 20 seconds after `start_timeout`). The process exits if TensorFlow's
            servers then do not connect within the same time, or a minute if that is
            longer.
        ValueError: If `grid` does not fit the replicas, another argument is wrong, or
            the process has a strategy that was made with other arguments.

    Example:
        ```python
        strategy = keras_fastnet.TorusStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(10)])
            model.compile(optimizer=keras_fastnet.LARS(1.0), loss="mse")
        model.fit(x, y, batch_size=32_768)
        ```
    """

    extended: TorusExtended
    fit_support: FitSupport
    wait_timeout: float
    membership: Membership

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: Any = None,
        *,
        grid: Literal["auto", "ring"] | tuple[int, int] = "auto",
        wire_dtype: Literal["bfloat16", "float16"] | tf.DType | None = None,
        bucket_bytes: int | None = None,
        transport: Literal["auto", "mpi", "tensorflow"] = "auto",
        scalar_losses: Literal["mean", "sum"] = "mean",
        start_timeout: float = 300.0,
        wait_timeout: float = 600.0,
    ):
        scalar_losses = checked_choice("scalar_losses", scalar_losses, SCALAR_LOSSES)
        self.wait_timeout = checked_number("wait_timeout", wait_timeout, above=0.0)
        checked_number("start_timeout", start_timeout, above=0.0)
        if communication_options is None:
            communication_options = tf.distribute.experimental.CommunicationOptions()
        if bucket_bytes is None:
            bucket_bytes = communication_options.bytes_per_pack or None
        reduction = check_options(grid, wire_dtype, bucket_bytes, transport)
        self.membership = found = find_cluster(
            cluster_resolver, transport, start_timeout
        )
        let_memory_grow()
        settings = {
            **dataclasses.asdict(reduction),
            "scalar_losses": scalar_losses,
        }
        nodes = meet_workers(found, start_timeout, settings)
        recorder = None
        if found.cluster is not None and found.cluster.size > 1:
            recorder = FlightRecorder(found.cluster, self.wait_timeout)
        named_errors = recorder.named_errors() if recorder else nullcontext()
        with server_start(found.cluster, start_timeout), named_errors:
            extended = TorusExtended(
                self,
                found.resolver,
                communication_options,
                nodes,
                reduction,
                found.mpi,
                recorder,
            )
            upstream.strategy_with_extended(self, extended)
        self.fit_support = FitSupport(
            self,
            trained_by=self._trained_by,
            check_fit=self.check_unchanged,
            scalar_losses=scalar_losses,
            recorder=recorder,
        )
        if not any("GPU" in device for device in extended.worker_devices):
            keep_freed_memory()
        install_changes(self)
        self.fit_support.note("the program, outside of `fit`")

    @property
    def grid(self) -> Grid:
        """The grid of replicas; a ring has one column."""
        return self.extended.choice.grid

    def describe(self) -> str:
        """Returns the ranks, cluster source, hosts, grid and transport, as a text."""
        return describe(self.extended, self.membership.source, self.wait_timeout)

    def check_unchanged(self) -> None:
        """Checks that the cluster is still as it was when the strategy was made.

        Raises:
            ClusterError: If a cluster was described after it, so that this worker would
                train alone.
        """
        if self.num_workers == 1:
            check_described_in_time(self.membership)

    def _trained_by(self) -> str:
        """Returns the numbers of workers and replicas and the grid, as a text."""
        replicas = self.num_replicas_in_sync
        text = count(self.num_workers, "worker")
        if replicas > self.num_workers:
            text += f" with {count(replicas, 'replica')}"
        if replicas == 1:
            return text
        return f"{text}, grid {self.grid} over {self._carrier()}"

    def _carrier(self) -> str:
        """Returns what carries gradients, and what would be faster."""
        extended = self.extended
        name: str = extended.engine
        measured = len(set(extended.hosts)) == len(extended.worker_devices) == 1
        if name == "gRPC" and measured and not mpi4py_is_installed():
            name += " (steps are shorter over MPI: pip install mpi4py mpich)"
        return name
