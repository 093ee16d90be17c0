"""Sums lists of tensors over all ranks, in buckets."""

from collections.abc import Sequence

import tensorflow as tf

from keras_fastnet.collectives.buckets import plan_buckets, unpack
from keras_fastnet.collectives.transport import BucketSums

# What transports carry, and as what they carry other integers.
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
        sums: Carries buckets to the other ranks and adds them.
        bucket_bytes: Size of a bucket, more or less; `None` for one bucket.
        wire_dtype: What `float32` is rounded to while it travels; `None` for no
            rounding.
    """

    def __init__(
        self,
        sums: BucketSums,
        *,
        bucket_bytes: int | None = None,
        wire_dtype: tf.DType | None = None,
    ):
        self._sums = sums
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
        by_dtype: dict[tf.DType, list[int]] = {}
        for index, tensor in enumerate(tensors):
            by_dtype.setdefault(self._travels_as(tensor.dtype), []).append(index)
        sums = list(tensors)
        for travels_as, indices in by_dtype.items():
            values = [tf.cast(tensors[index], travels_as) for index in indices]
            for index, value in zip(indices, self._sum_alike(values), strict=True):
                sums[index] = tf.cast(value, tensors[index].dtype)
        return sums

    def _sum_alike(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors of one dtype."""
        buckets = plan_buckets(
            [tensor.shape.num_elements() for tensor in tensors],
            tensors[0].dtype,
            self._bucket_bytes,
            self._sums.cuts_tensors,
        )
        return unpack(self._sums.sum(tensors, buckets), buckets, tensors)

    def _travels_as(self, dtype: tf.DType) -> tf.DType:
        if dtype == tf.float32 and self._wire_dtype is not None:
            return self._wire_dtype
        return _carrier(dtype)


def _carrier(dtype: tf.DType) -> tf.DType:
    try:
        return _CARRIERS[dtype]
    except KeyError:
        names = ", ".join(known.name for known in _CARRIERS)
        raise TypeError(
            f"Sums over replicas are of tensors of these dtypes: {names}. "
            f"Received: {dtype.name}. Cast the tensor first."
        ) from None
