"""What carries vectors between ranks."""

from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from keras_fastnet.collectives.buckets import Bucket
from keras_fastnet.collectives.cost_model import Algorithm


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
