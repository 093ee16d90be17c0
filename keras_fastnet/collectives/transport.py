"""Protocols of the transports that carry vectors between ranks."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from keras_fastnet.collectives.buckets import Bucket
from keras_fastnet.collectives.cost_model import Algorithm


class Group(Protocol):
    """A group of ranks that reduce together, as one of them sees it.

    Vectors have one axis, and the same length and dtype on all ranks of the group. All
    ranks call the same operations in the same order. An operation may overwrite the
    vectors that it is given.

    Attributes:
        size: Number of ranks.
    """

    size: int

    def reduce_scatter(self, vector: Any) -> Any:
        """Sums vectors and scatters the chunks of the sum.

        Args:
            vector: This rank's vector, whose length is a multiple of `size`.

        Returns:
            This rank's chunk of the sum.
        """

    def all_gather(self, chunk: Any, vector: Any) -> Any:
        """Gathers the chunks that `reduce_scatter` returned.

        Args:
            chunk: This rank's chunk.
            vector: The vector that this rank passed to `reduce_scatter`.

        Returns:
            The chunks of all ranks, in the order of the group.
        """

    def start_all_reduce(self, vector: Any) -> Callable[[], Any]:
        """Starts an all-reduce that sends as few bytes as possible.

        One more may be started before this one is waited for.

        Args:
            vector: This rank's vector, whose length is a multiple of `size`.

        Returns:
            A function that waits for the sum, bit-equal on all ranks, and returns it.
        """

    def gather_and_sum(self, vector: Any) -> Any:
        """Sums vectors with as few messages as possible.

        Args:
            vector: This rank's vector.

        Returns:
            The sum, bit-equal on all ranks.
        """


class BucketSums(Protocol):
    """All-reduce of buckets over all ranks, as one rank sees it.

    Attributes:
        cuts_tensors: Whether to split a large tensor over several buckets rather than
            enlarge a bucket.
    """

    cuts_tensors: bool

    def sum(
        self, tensors: Sequence[tf.Tensor], buckets: Sequence[Bucket]
    ) -> list[tf.Tensor]:
        """Sums buckets.

        Args:
            tensors: This rank's tensors, all of one dtype.
            buckets: The pieces of tensors that form each vector.

        Returns:
            A vector for each bucket, bit-equal on all ranks. It may be longer than the
            bucket.
        """


class Transport(Protocol):
    """The groups of ranks that a worker's devices belong to, on one grid.

    Attributes:
        ranks_by_row: The ranks in every row of the grid, by column.
    """

    ranks_by_row: list[list[int]]

    def sums(self, algorithm_for: Callable[[int], Algorithm]) -> Sequence[BucketSums]:
        """Returns the all-reduce of each of this worker's devices.

        Args:
            algorithm_for: Returns the algorithm for a vector of so many bytes; the same
                on all ranks.
        """
