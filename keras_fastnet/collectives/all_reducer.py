"""Sums lists of tensors over all ranks, in buckets, each by the best algorithm."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_fastnet.collectives.buckets import pack, plan_buckets, unpack
from keras_fastnet.collectives.cost_model import Algorithm
from keras_fastnet.collectives.group import Group
from keras_fastnet.collectives.torus import gathered_sum, torus_sums

# What TensorFlow's collectives carry, and as what they carry other integers.
_CARRIERS = {
    tf.bfloat16: tf.bfloat16,
    tf.float16: tf.float16,
    tf.float32: tf.float32,
    tf.float64: tf.float64,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.int32: tf.int32,
    tf.int64: tf.int64,
    tf.uint8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
    tf.uint64: tf.int64,
}


class AllReducer:
    """One rank's part in sums over all ranks.

    Args:
        row: The ranks in this rank's row of the grid.
        column: The ranks in its column.
        everyone: All ranks.
        algorithm_for: Which algorithm to use for a vector of so many bytes; the same
            answers on all ranks.
        bucket_bytes: Size of a bucket; `None` for one bucket.
        wire_dtype: What `float32` is rounded to while it travels; `None` for no
            rounding.
    """

    def __init__(
        self,
        row: Group,
        column: Group,
        everyone: Group,
        algorithm_for: Callable[[int], Algorithm],
        *,
        bucket_bytes: int | None = None,
        wire_dtype: tf.DType | None = None,
    ):
        self._row = row
        self._column = column
        self._everyone = everyone
        self._algorithm_for = algorithm_for
        self._bucket_bytes = bucket_bytes
        self._wire_dtype = wire_dtype

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors over all ranks.

        Args:
            tensors: This rank's. All ranks have as many, of the same shapes and
                dtypes; a shape is static on all of them or on none.

        Returns:
            The sums, bit-equal on all ranks.

        Raises:
            TypeError: A tensor is of a dtype that has no sum or cannot travel.
        """
        by_carrier: dict[tf.DType, list[int]] = {}
        for index, tensor in enumerate(tensors):
            by_carrier.setdefault(_carrier(tensor.dtype), []).append(index)
        sums = list(tensors)
        for carrier, indices in by_carrier.items():
            values = [tf.cast(tensors[index], carrier) for index in indices]
            for index, value in zip(indices, self._sum_alike(values), strict=True):
                sums[index] = tf.cast(value, tensors[index].dtype)
        return sums

    def _sum_alike(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors of one dtype."""
        dtype = tensors[0].dtype
        travels_as = dtype
        if dtype == tf.float32 and self._wire_dtype is not None:
            travels_as = self._wire_dtype
        capacity = self._bucket_bytes and max(1, self._bucket_bytes // dtype.size)
        buckets = plan_buckets([t.shape.num_elements() for t in tensors], capacity)
        ranks = self._row.size * self._column.size
        vectors = [
            tf.cast(pack(tensors, pieces, multiple=ranks), travels_as)
            for pieces in buckets
        ]
        sums = [tf.cast(total, dtype) for total in self._sum_vectors(vectors)]
        return unpack(sums, buckets, tensors)

    def _sum_vectors(self, vectors: list[tf.Tensor]) -> list[tf.Tensor]:
        algorithms = [self._algorithm_of(vector) for vector in vectors]
        on_torus = iter(
            torus_sums(
                [
                    vector
                    for vector, algorithm in zip(vectors, algorithms, strict=True)
                    if algorithm == "torus"
                ],
                self._row,
                self._column,
            )
        )
        sums = []
        for vector, algorithm in zip(vectors, algorithms, strict=True):
            if algorithm == "torus":
                sums.append(next(on_torus))
            elif algorithm == "ring":
                sums.append(self._everyone.all_reduce(vector))
            else:
                sums.append(gathered_sum(vector, self._row, self._column))
        return sums

    def _algorithm_of(self, vector: tf.Tensor) -> Algorithm:
        elements = vector.shape.num_elements()
        if elements is None:
            return "ring"
        return self._algorithm_for(elements * vector.dtype.size)


def _carrier(dtype: tf.DType) -> tf.DType:
    try:
        return _CARRIERS[dtype]
    except KeyError:
        names = ", ".join(known.name for known in _CARRIERS)
        raise TypeError(
            f"Sums over replicas are of tensors of these dtypes: {names}. "
            f"Received: {dtype.name}. Cast the tensor first."
        ) from None
