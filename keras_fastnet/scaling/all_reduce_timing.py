"""Times all-reduces against each other, for `fastnet bench`."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet import TorusStrategy
from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.collectives.mpi_transport import MpiTransport
from keras_fastnet.scaling.bench_results import (
    FROM_PYTHON,
    MPI_ITSELF,
    OVER_GRPC,
    TENSORFLOW_ITSELF,
)
from keras_fastnet.strategies.torus_extended import TorusCrossDeviceOps

# Longer vectors are not gathered whole.
_LARGEST_GATHER = 2**20
_PATTERN = np.arange(61, dtype=np.float32)
# A few roundings to the 8 significant bits of bfloat16.
_TOLERANCE = 0.02
_NEVER_ROUNDED = (TENSORFLOW_ITSELF, MPI_ITSELF, FROM_PYTHON)
# Long compared with the time that starting and ending a block takes.
_BLOCK_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class TimedAllReduce:
    """One way to sum over all ranks.

    Attributes:
        algorithm: The name of the algorithm in the results.
        grid: The grid; one column if it has no influence.
        operations: The operations that sum in TensorFlow; `None` for `sum_array`.
        sum_array: The function that sums an array without TensorFlow. Defaults to
            `None`: `operations` sum.
    """

    algorithm: str
    grid: Grid
    operations: upstream.CollectiveAllReduce | None
    sum_array: Callable[[np.ndarray], np.ndarray] | None = None


class AllReduces:
    """Makes the all-reduces to time on a cluster. Create it on all workers.

    Args:
        strategy: The cluster's strategy.
        grids: The grids to compare.
    """

    def __init__(self, strategy: TorusStrategy, grids: Sequence[Grid]):
        self._strategy = strategy
        self._extended = strategy.extended
        self._transports = {grid: self._extended.transport_on(grid) for grid in grids}
        self._beside_mpi: list[TimedAllReduce] = []
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
                choice.grid,
                self._extended.hosts,
                self._communicator,
                self._extended.check_peers,
            )
            sums = transport.sums(choice.algorithm_for)[0]
            self._beside_mpi = [
                TimedAllReduce(OVER_GRPC, choice.grid, over_grpc),
                TimedAllReduce(MPI_ITSELF, flat, None, self._by_mpi_itself()),
                TimedAllReduce(
                    FROM_PYTHON,
                    choice.grid,
                    None,
                    lambda vector: sums.sum_arrays([0], 0, vector)[: len(vector)],
                ),
            ]

    def of_size(self, nbytes: int) -> list[TimedAllReduce]:
        """Returns the all-reduces to time for one size of vector.

        Args:
            nbytes: Bytes of the vector.
        """
        flat = Grid(self._strategy.num_replicas_in_sync, 1)
        stock = upstream.CollectiveAllReduce(**self._extended.collective_settings)
        found = [TimedAllReduce(TENSORFLOW_ITSELF, flat, stock), *self._beside_mpi]
        # A ring does not depend on the grid.
        any_grid = next(iter(self._transports))
        ring = self._operations("ring", any_grid)
        found.append(TimedAllReduce("ring", flat, ring))
        for grid in self._transports:
            if grid.columns > 1:  # With one column the torus equals the ring.
                torus = self._operations("torus", grid)
                found.append(TimedAllReduce("torus", grid, torus))
            if nbytes <= _LARGEST_GATHER:
                gather = self._operations("gather", grid)
                found.append(TimedAllReduce("gather", grid, gather))
        chosen = self._extended._cross_device_ops
        return [*found, TimedAllReduce("auto", self._strategy.grid, chosen)]

    def functions(
        self, ways: Sequence[TimedAllReduce], nbytes: int
    ) -> list[Callable[[], list[Any]]]:
        """Returns a function for each all-reduce that sums one vector over all ranks.

        It calls each function once and checks its sums.

        Args:
            ways: The all-reduces.
            nbytes: Bytes of the `float32` vector.

        Raises:
            RuntimeError: If a sum is wrong.
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

        def function_of(way: TimedAllReduce) -> Callable[[], list[Any]]:
            sum_array = way.sum_array
            if sum_array is not None:
                return lambda: [sum_array(of_this_rank)]

            @tf.function
            def sums(vector):
                return strategy.run(_sum_with, (way.operations, vector))

            # Traced explicitly: TensorFlow warns if one place makes many functions.
            traced = sums.get_concrete_function(vector)
            return lambda: strategy.experimental_local_results(traced(vector))

        # Each rank of MPI has one device.
        of_this_rank = strategy.experimental_local_results(vector)[0].numpy()

        # In place, as the copies of many ranks on one machine would add up.
        expected = pattern
        expected *= ranks
        expected += sum(rank % 3 for rank in range(ranks))
        functions = []
        for way in ways:
            function = function_of(way)
            rounding = way.algorithm not in _NEVER_ROUNDED
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
                        f"Received: {total} by {way.algorithm} on grid "
                        f"{way.grid}. Please report this."
                    )
            functions.append(function)
        return functions

    def agree(self, values: list[int]) -> list[int]:
        """Returns rank 0's values on all ranks.

        Args:
            values: This worker's values, equally many on each worker.
        """
        total = tf.distribute.ReduceOp.SUM

        def from_rank_0():
            context = tf.distribute.get_replica_context()
            first = context.replica_id_in_sync_group == 0
            own = tf.where(first, values, [0] * len(values))
            return context.all_reduce(total, own)

        run = tf.function(lambda: self._strategy.run(from_rank_0))
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


def time_in_turn(
    functions: Sequence[Callable[[], Any]],
    finish: Callable[[Any], None],
    agree: Callable[[list[int]], list[int]],
    *,
    warm_up_calls: int,
    rounds: int,
) -> list[list[float]]:
    """Times collective functions in turn, so noise affects all of them equally.

    Only the functions themselves synchronize the ranks: no rank can be ahead of
    another by more than the sum that is being timed.

    Args:
        functions: Functions that all ranks call equally often.
        finish: Waits until the result of a function is computed.
        agree: Returns rank 0's integers on all ranks.
        warm_up_calls: Calls of each function from which the number of calls in a block
            is estimated.
        rounds: The number of rounds. Each round runs one block of every function.

    Returns:
        For each function, the seconds of one call in every round.
    """

    def seconds(function: Callable[[], Any], calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            result = None  # Frees a long vector before the next is made.
            result = function()
        finish(result)
        return (time.perf_counter() - start) / calls

    calls = agree(
        [
            math.ceil(_BLOCK_SECONDS / seconds(function, warm_up_calls))
            for function in functions
        ]
    )
    found: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds):
        for i in range(len(functions)):
            # Each round starts with another function.
            index = (i + turn) % len(functions)
            found[index].append(seconds(functions[index], calls[index]))
    return found


def finish(sums: Sequence[Any]) -> None:
    """Waits until a device has computed its results.

    Args:
        sums: The result that was started last.
    """
    for total in sums:
        np.asarray(total[0])


def _sum_with(operations: upstream.CollectiveAllReduce, vector: tf.Tensor) -> tf.Tensor:
    """Sums like `ReplicaContext.all_reduce`, but with the given operations."""
    context = tf.distribute.get_replica_context()
    options = tf.distribute.experimental.CommunicationOptions()
    return operations._all_reduce(
        tf.distribute.ReduceOp.SUM, [vector], context._replica_id, options
    )[0]
