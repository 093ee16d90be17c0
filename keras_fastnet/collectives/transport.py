"""Protocols of the transports that carry vectors between ranks."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from keras_fastnet.collectives.buckets import Bucket
from keras_fastnet.collectives.cost_model import Algorithm


class Group(Protocol):
    """Some ranks that reduce together, as one of them sees it.

    Vectors have one axis and the same length and dtype on all ranks of the group.
    All ranks call the same operations in the same order. An operation may overwrite
    the vectors that it is given.

    Attributes:
        size: Number of ranks.
    """

    size: int

    def reduce_scatter(self, vector: Any) -> Any:
        """Sums vectors and deals out the sum.

        Args:
            vector: This rank's, of a length that `size` divides.

        Returns:
            The chunk of the sum that belongs to this rank's place.
        """

    def all_gather(self, chunk: Any, vector: Any) -> Any:
        """Undoes the dealing out of `reduce_scatter`.

        Args:
            chunk: This rank's.
            vector: What this rank gave to `reduce_scatter`.

        Returns:
            The chunks of all ranks, by place.
        """

    def start_all_reduce(self, vector: Any) -> Callable[[], Any]:
        """Begins to sum vectors, with as few bytes as can be.

        One more may be begun before the sum is waited for.

        Args:
            vector: This rank's, of a length that `size` divides.

        Returns:
            A function that waits for the sum, bit-equal on all ranks, and returns it.
        """

    def gather_and_sum(self, vector: Any) -> Any:
        """Sums vectors, with as few messages as can be.

        Args:
            vector: This rank's.

        Returns:
            The sum, bit-equal on all ranks.
        """


class BucketSums(Protocol):
    """Sums what lies in buckets over all ranks, as one of them sees it.

    Attributes:
        cuts_tensors: Whether it is better to spread a large tensor over several
            buckets than to have a larger bucket.
    """

    cuts_tensors: bool

    def sum(
        self, tensors: Sequence[tf.Tensor], buckets: Sequence[Bucket]
    ) -> list[tf.Tensor]:
        """Sums buckets.

        Args:
            tensors: This rank's, all of one dtype.
            buckets: Which pieces of them make which vector.

        Returns:
            A vector for each bucket, bit-equal on all ranks. It may be longer than
            the bucket.
        """


class Transport(Protocol):
    """The groups of ranks that a worker's devices belong to, on one grid.

    Attributes:
        places: The ranks in every row of the grid, by column.
    """

    places: list[list[int]]

    def sums(self, algorithm_for: Callable[[int], Algorithm]) -> Sequence[BucketSums]:
        """Returns what sums over all ranks, for each of this worker's devices.

        Args:
            algorithm_for: Which algorithm to use for a vector of so many bytes; the
                same answers on all ranks.
        """
