"""The extended half of `TorusStrategy`: devices and reductions."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.cluster.flight_recorder import FlightRecorder
from keras_fastnet.cluster.mpi import MpiWorld
from keras_fastnet.collectives.all_reducer import AllReducer
from keras_fastnet.collectives.collective_mark import CollectiveMark
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.collectives.grid_choice import (
    DEFAULT_BUCKET_BYTES,
    NCCL_BUCKET_BYTES,
    Engine,
    GridChoice,
    choose_grid,
)
from keras_fastnet.collectives.mpi_transport import MpiTransport
from keras_fastnet.collectives.tensorflow_transport import TensorFlowTransport
from keras_fastnet.collectives.transport import Transport
from keras_fastnet.strategies.extended import FitExtended
from keras_fastnet.strategies.initial_values import InitialValues
from keras_fastnet.strategies.reduction_options import ReductionOptions
from keras_fastnet.text import count

_WAYS: dict[Algorithm, str] = {
    "ring": "one ring over all ranks",
    "torus": "reduce-scatter in rows, all-reduce in columns, all-gather in rows",
    "gather": "whole vectors sent to all of the row, then of the column",
}


class TorusCrossDeviceOps(upstream.CollectiveAllReduce):
    """Sums dense tensors over the torus; gathers sparse ones as TensorFlow does.

    Args:
        reducers: An all-reducer for each of this worker's devices.
        watch: Called with clocks of the waits in TensorFlow's gathers.
        **kwargs: Arguments of TensorFlow's `CollectiveAllReduce`.
    """

    def __init__(
        self,
        reducers: Sequence[AllReducer],
        watch: Callable[[Callable[[], float]], None],
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._reducers = reducers
        self._marks = [CollectiveMark(device) for device in self._devices]
        for mark in self._marks:
            watch(mark.waited)

    def _batch_all_gather(self, *args, **kwargs):
        # TensorFlow gathers within functions only, also for a program that has them
        # run eagerly to debug it.
        eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(False)
        try:
            return super()._batch_all_gather(*args, **kwargs)
        finally:
            tf.config.run_functions_eagerly(eagerly)

    def _all_reduce(self, reduce_op, value, replica_id, options):
        values = tf.nest.flatten(value)
        sparse = [i for i, v in enumerate(values) if isinstance(v, tf.IndexedSlices)]
        dense = [i for i in range(len(values)) if i not in set(sparse)]
        results = list(values)
        if sparse:
            sum_sparse = super()._all_reduce
            slices = [values[i] for i in sparse]
            gathered = self._marks[replica_id].around(
                slices, lambda: sum_sparse(reduce_op, slices, replica_id, options)
            )
            for i, result in zip(sparse, gathered, strict=True):
                results[i] = result
        with tf.device(self._devices[replica_id]):
            sums = self._reducers[replica_id].sum(
                [tf.convert_to_tensor(values[i]) for i in dense]
            )
            for i, total in zip(dense, sums, strict=True):
                mean = reduce_op == tf.distribute.ReduceOp.MEAN
                results[i] = total / self._group_size if mean else total
        return tf.nest.pack_sequence_as(value, results)


class TorusExtended(FitExtended, upstream.CollectiveAllReduceExtended):
    """Collective all-reduce over a grid of replicas.

    Args:
        strategy: The `TorusStrategy`.
        cluster_resolver: Describes the cluster; `None` for TF_CONFIG.
        communication_options: TensorFlow's options for collectives.
        hosts: Each worker's host, by rank.
        reduction: Options of the all-reduce.
        mpi: The MPI world of the workers; `None` to reduce on TensorFlow's
            collectives.
        recorder: Records what this worker does; `None` for a single worker.

    """

    def __init__(
        self,
        strategy: Any,
        cluster_resolver: Any,
        communication_options: Any,
        hosts: Sequence[str],
        reduction: ReductionOptions,
        mpi: MpiWorld | None = None,
        recorder: FlightRecorder | None = None,
    ):
        self.initial_values = InitialValues()
        self.recorder: FlightRecorder | None = None
        super().__init__(
            strategy,
            cluster_resolver=cluster_resolver,
            communication_options=communication_options,
        )
        self.recorder = recorder
        if recorder is not None:
            recorder.start()
        self.reduction = reduction
        self.mpi = mpi if self._suits_mpi(reduction.transport) else None
        devices = len(self.worker_devices)
        self.hosts = [host for host in hosts for _ in range(devices)]
        self.arrange(
            choose_grid(reduction.grid, self.hosts, self.bucket_bytes, self.engine)
        )

    def check_peers(self, seconds: float) -> None:
        """Raises an error if another worker is late or has ended. Polled while waiting.

        Args:
            seconds: How long this worker has waited.

        Raises:
            ClusterError: If a worker is late, has left the program or does not answer.
        """
        if self.recorder is not None:
            self.recorder.poll(seconds)

    def _suits_mpi(self, transport: str) -> bool:
        """Returns whether MPI carries vectors, if there is an MPI world."""
        devices = self.worker_devices
        if transport == "auto":
            # GPUs have NCCL.
            return len(devices) == 1 and "CPU" in devices[0]
        if transport == "mpi" and len(devices) > 1:
            raise ValueError(
                'With `transport="mpi"` every process has one device. Received: '
                f"{len(devices)} devices. Start as many processes as there are "
                'devices, or use `transport="tensorflow"`.'
            )
        return transport == "mpi"

    @property
    def engine(self) -> Engine:
        """The library that carries vectors between replicas."""
        if self.mpi is not None:
            return "MPI"
        return "NCCL" if self._uses_nccl else "gRPC"

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket of gradients."""
        default = NCCL_BUCKET_BYTES if self.engine == "NCCL" else DEFAULT_BUCKET_BYTES
        return self.reduction.bucket_bytes or default

    @property
    def _uses_nccl(self) -> bool:
        """Whether collectives travel over NCCL."""
        options = self._communication_options
        kinds = tf.distribute.experimental.CommunicationImplementation
        return options.implementation != kinds.RING and all(
            "GPU" in device for device in self.worker_devices
        )

    def arrange(self, choice: GridChoice) -> None:
        """Arranges the replicas in a grid, on all workers at once.

        Args:
            choice: The grid, and the algorithms to use on it.
        """
        self.choice = choice
        transport = self.transport_on(choice.grid)
        self.places = transport.ranks_by_row
        self._cross_device_ops = self.operations_on(transport, choice.algorithm_for)

    def transport_on(self, grid: Grid) -> Transport:
        """Returns the groups of a grid of all replicas. All workers must call it.

        Args:
            grid: The grid.
        """
        if self.mpi is None:
            return self.tensorflow_transport_on(grid)
        return MpiTransport(grid, self.hosts, self.mpi.communicator, self.check_peers)

    def tensorflow_transport_on(self, grid: Grid) -> TensorFlowTransport:
        """Returns those groups on TensorFlow's collectives. All workers must call it.

        Args:
            grid: The grid.
        """
        devices = self.worker_devices
        return TensorFlowTransport(
            grid,
            self.hosts,
            devices,
            self.rank * len(devices),
            nccl=self._uses_nccl,
            timeout_seconds=self._communication_options.timeout_seconds or 0.0,
            watch=self._watch,
        )

    def operations_on(
        self,
        transport: Transport,
        algorithm_for: Callable[[int], Algorithm],
    ) -> TorusCrossDeviceOps:
        """Returns the reductions over a transport, with the strategy's options.

        Args:
            transport: The groups.
            algorithm_for: Returns the algorithm for a vector of so many bytes.
        """
        return TorusCrossDeviceOps(
            [
                AllReducer(
                    sums,
                    bucket_bytes=self.bucket_bytes,
                    wire_dtype=self.reduction.wire_dtype,
                )
                for sums in transport.sums(algorithm_for)
            ],
            self._watch,
            **self.collective_settings,
        )

    @property
    def collective_settings(self) -> dict[str, Any]:
        """Arguments of TensorFlow's cross-device operations."""
        return {
            "devices": self.worker_devices,
            "group_size": self._num_replicas_in_sync,
            "options": self._communication_options,
            "collective_keys": self._collective_keys,
        }

    def _watch(self, clock: Callable[[], float]) -> None:
        if self.recorder is not None:
            self.recorder.watch(clock)

    def _reduce_to(self, *args, **kwargs):
        if self.recorder is None or not tf.executing_eagerly():
            return super()._reduce_to(*args, **kwargs)
        # Such as the metrics at the end of an epoch.
        purpose = "for the others in a sum outside of steps"
        with self.recorder.waiting(purpose), self.recorder.named_errors():
            return super()._reduce_to(*args, **kwargs)

    def _get_variable_creator_initial_value(
        self, replica_id, device, primary_var, **kwargs
    ):
        if replica_id == 0:
            # Not the chief's, by a collective for each variable: see `InitialValues`.
            return kwargs["initial_value"]
        return super()._get_variable_creator_initial_value(
            replica_id, device, primary_var, **kwargs
        )

    @property
    def rank(self) -> int:
        """This worker's rank in the cluster."""
        return self._id_in_cluster

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return self._num_workers

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        devices, kind = super()._initialize_local_devices(
            cluster_resolver, worker_device
        )
        if kind == "CPU":
            # As MirroredStrategy: a replica on each logical CPU.
            cpu = tf.config.list_physical_devices("CPU")[0]
            count = len(tf.config.get_logical_device_configuration(cpu) or [cpu])
            devices = tuple(f"{worker_device}/device:CPU:{i}" for i in range(count))
        return devices, kind


def describe(extended: TorusExtended, source: str, wait_timeout: float) -> str:
    """Returns a text about the replicas and their all-reduce.

    Args:
        extended: The extended half of a strategy.
        source: Where the cluster is described.
        wait_timeout: Seconds that a worker waits for another one.

    Returns:
        Some lines of text.
    """
    reduction, grid = extended.reduction, extended.choice.grid
    devices = len(extended.worker_devices)
    ranks = len(extended.hosts)
    rows = [
        "  ".join(f"{rank} ({extended.hosts[rank]})" for rank in row)
        for row in extended.places
    ]
    own = extended.engine == "MPI"
    carrier = "MPI" if own else f"TensorFlow's collectives, {extended.engine}"
    wire = reduction.wire_dtype
    travels = "every dtype as it is" if wire is None else f"float32 as {wire.name}"
    entries = [
        (
            "ranks",
            f"{ranks} ({count(extended.workers, 'worker')} with "
            f"{count(devices, 'device')} each); "
            f"this is worker {extended.rank}",
        ),
        ("found by", source),
        ("hosts", ", ".join(dict.fromkeys(extended.hosts))),
        ("grid", f"{count(grid.rows, 'row')} x {count(grid.columns, 'column')}"),
        *(("", row) for row in rows),
        ("transport", f"{carrier}; {travels}"),
        ("buckets", f"{extended.bucket_bytes:,} bytes"),
        *(("sums", line) for line in _algorithms(extended.choice)),
        ("waits", f"up to {wait_timeout:g} s for another worker"),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in entries)


def _algorithms(choice: GridChoice) -> list[str]:
    """Returns the algorithm for each range of sizes, in powers of two."""
    lines: list[str] = []
    sizes = [2**power for power in range(10, 31)]
    for algorithm, group in itertools.groupby(sizes, choice.algorithm_for):
        largest = list(group)[-1]
        limit = f"to about {largest:,} bytes"
        if largest == sizes[-1]:
            limit = "larger" if lines else "any size"
        lines.append(f"{limit}: {algorithm}, {_WAYS[algorithm]}")
    return lines
