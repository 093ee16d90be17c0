"""The all-reduces that `fastnet bench` compares."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet import TorusStrategy
from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.collectives.mpi_transport import MpiTransport
from keras_fastnet.scaling.price_fit import (
    FROM_PYTHON,
    MPI_ITSELF,
    OVER_GRPC,
    TENSORFLOW_ITSELF,
)
from keras_fastnet.strategies.torus_extended import TorusCrossDeviceOps

# Gathering whole vectors is for small ones.
_LARGEST_GATHER = 2**20
_PATTERN = np.arange(61, dtype=np.float32)
# A few roundings to the 8 significant bits of bfloat16.
_TOLERANCE = 0.02
_NEVER_ROUNDED = (TENSORFLOW_ITSELF, MPI_ITSELF, FROM_PYTHON)


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to sum over all ranks.

    Attributes:
        algorithm: Its name.
        grid: The grid; one column where it does not matter.
        operations: What carries it out within TensorFlow, if that does.
        sum_array: Otherwise, what sums an array.
    """

    algorithm: str
    grid: Grid
    operations: upstream.CollectiveAllReduce | None
    sum_array: Callable[[np.ndarray], np.ndarray] | None = None


class Contest:
    """Makes the contestants of a cluster. All workers must make it.

    Args:
        strategy: The cluster's strategy.
        grids: The grids to compare.
    """

    def __init__(self, strategy: TorusStrategy, grids: Sequence[Grid]):
        self._strategy = strategy
        self._extended = strategy.extended
        self._transports = {grid: self._extended.transport_on(grid) for grid in grids}
        self._beside_mpi: list[Contestant] = []
        mpi = self._extended.mpi
        if mpi is not None:
            self._communicator = mpi.communicator.Dup()
            choice = self._extended.choice
            over_grpc = self._extended.operations_on(
                self._extended.tensorflow_transport_on(choice.grid),
                choice.algorithm_for,
            )
            flat = Grid(choice.grid.size, 1)
            transport = MpiTransport(
                choice.grid, self._extended.hosts, self._communicator, mpi.check_peers
            )
            sums = transport.sums(choice.algorithm_for)[0]
            self._beside_mpi = [
                Contestant(OVER_GRPC, choice.grid, over_grpc),
                Contestant(MPI_ITSELF, flat, None, self._by_mpi_itself()),
                Contestant(
                    FROM_PYTHON,
                    choice.grid,
                    None,
                    lambda vector: sums.sum_arrays([0], 0, vector)[: len(vector)],
                ),
            ]

    def contestants(self, nbytes: int) -> list[Contestant]:
        """Returns those for a vector of so many bytes.

        Args:
            nbytes: Bytes of the vector.
        """
        flat = Grid(self._strategy.num_replicas_in_sync, 1)
        peer = upstream.CollectiveAllReduce(**self._extended.collective_settings)
        found = [Contestant(TENSORFLOW_ITSELF, flat, peer), *self._beside_mpi]
        # Any grid will do: a ring looks at all ranks only.
        anywhere = next(iter(self._transports))
        ring = self._operations("ring", anywhere)
        found.append(Contestant("ring", flat, ring))
        for grid in self._transports:
            if grid.columns > 1:  # With one column the torus is the ring.
                torus = self._operations("torus", grid)
                found.append(Contestant("torus", grid, torus))
            if nbytes <= _LARGEST_GATHER:
                gather = self._operations("gather", grid)
                found.append(Contestant("gather", grid, gather))
        own = self._extended._cross_device_ops
        return [*found, Contestant("auto", self._strategy.grid, own)]

    def functions(
        self, contestants: Sequence[Contestant], nbytes: int
    ) -> list[Callable[[], list[Any]]]:
        """Returns functions that sum one vector over all ranks.

        Each has been called once, and its sums were right.

        Args:
            contestants: Those for this size.
            nbytes: Bytes of the vector, of `float32`.

        Raises:
            RuntimeError: A sum was wrong.
        """
        strategy, extended = self._strategy, self._extended
        pattern = np.resize(_PATTERN, nbytes // 4)
        ranks = strategy.num_replicas_in_sync

        def own_vector(context: Any) -> tf.Tensor:
            rank = context.replica_id_in_sync_group
            device = extended.worker_devices[extended._get_local_replica_id(rank)]
            with tf.device(device):
                return tf.constant(pattern + rank % 3)

        vector = strategy.experimental_distribute_values_from_function(own_vector)

        def function_of(contestant: Contestant) -> Callable[[], list[Any]]:
            sum_array = contestant.sum_array
            if sum_array is not None:
                return lambda: [sum_array(of_this_rank)]

            @tf.function
            def sums(vector):
                return strategy.run(_sum_with, (contestant.operations, vector))

            # TensorFlow warns of many functions that are made in one place.
            traced = sums.get_concrete_function(vector)
            return lambda: strategy.experimental_local_results(traced(vector))

        # MPI's ranks have one device each.
        of_this_rank = strategy.experimental_local_results(vector)[0].numpy()

        # In place: with many ranks on a machine, copies of long vectors add up.
        expected = pattern
        expected *= ranks
        expected += sum(rank % 3 for rank in range(ranks))
        functions = []
        for contestant in contestants:
            function = function_of(contestant)
            rounding = contestant.algorithm not in _NEVER_ROUNDED
            rounded = rounding and extended.reduction.wire_dtype is not None
            for total in function():
                right = (
                    np.allclose(total, expected, rtol=_TOLERANCE, atol=0.0)
                    if rounded
                    else np.array_equal(total, expected)
                )
                if not right:
                    raise RuntimeError(
                        f"The sum of {nbytes:,} bytes over {ranks} ranks is wrong. "
                        f"Received: {total} by {contestant.algorithm} on grid "
                        f"{contestant.grid}. Please report this."
                    )
            functions.append(function)
        return functions

    def agree(self, values: list[int]) -> list[int]:
        """Returns rank 0's values on all ranks.

        Args:
            values: This worker's, equally many on all.
        """
        total = tf.distribute.ReduceOp.SUM

        def of_first():
            context = tf.distribute.get_replica_context()
            first = context.replica_id_in_sync_group == 0
            own = tf.where(first, values, [0] * len(values))
            return context.all_reduce(total, own)

        run = tf.function(lambda: self._strategy.run(of_first))
        sums = run.get_concrete_function()()
        return self._strategy.experimental_local_results(sums)[0].numpy().tolist()

    def _by_mpi_itself(self) -> Callable[[np.ndarray], np.ndarray]:
        total = np.empty(0, np.float32)

        def sum_array(vector: np.ndarray) -> np.ndarray:
            nonlocal total
            if len(total) != len(vector):
                total = np.empty_like(vector)
            self._communicator.Allreduce(vector, total)
            return total

        return sum_array

    def _operations(self, algorithm: Algorithm, grid: Grid) -> TorusCrossDeviceOps:
        return self._extended.operations_on(self._transports[grid], lambda _: algorithm)


def finish(sums: Sequence[Any]) -> None:
    """Waits until a device has done what it was given to do.

    Args:
        sums: What it was last given to compute.
    """
    for total in sums:
        np.asarray(total[0])


def _sum_with(operations: upstream.CollectiveAllReduce, vector: tf.Tensor) -> tf.Tensor:
    """Sums as `ReplicaContext.all_reduce` does for the strategy's own operations."""
    context = tf.distribute.get_replica_context()
    options = tf.distribute.experimental.CommunicationOptions()
    return operations._all_reduce(
        tf.distribute.ReduceOp.SUM, [vector], context._replica_id, options
    )[0]
