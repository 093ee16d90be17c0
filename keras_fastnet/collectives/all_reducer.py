"""All-reduce of lists of tensors, in buckets."""

from collections.abc import Sequence

import tensorflow as tf

from keras_fastnet.collectives.buckets import plan_buckets, unpack
from keras_fastnet.collectives.transport import BucketSums

# The dtype in which transports carry and sum each dtype.
_WIRE_DTYPES = {
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
    """Sums tensors over all ranks, as one rank.

    Args:
        sums: Carries buckets to the other ranks and adds them.
        bucket_bytes: Approximate size of a bucket in bytes; `None` for one bucket.
            Defaults to `None`.
        wire_dtype: The dtype that `float32` tensors are rounded to for transport;
            `None` for no rounding. Defaults to `None`.
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
            tensors: This rank's tensors. All ranks pass the same number, with the same
                shapes and dtypes; a shape is static on all ranks or on none.

        Returns:
            The sums, bit-equal on all ranks.

        Raises:
            TypeError: If a tensor's dtype cannot be summed or sent.
        """
        by_dtype: dict[tf.DType, list[int]] = {}
        for index, tensor in enumerate(tensors):
            by_dtype.setdefault(self._wire_dtype_of(tensor.dtype), []).append(index)
        sums = list(tensors)
        for wire_dtype, indices in by_dtype.items():
            values = [tf.cast(tensors[index], wire_dtype) for index in indices]
            for index, value in zip(indices, self._sum_one_dtype(values), strict=True):
                sums[index] = tf.cast(value, tensors[index].dtype)
        return sums

    def _sum_one_dtype(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors of one dtype."""
        buckets = plan_buckets(
            [tensor.shape.num_elements() for tensor in tensors],
            tensors[0].dtype,
            self._bucket_bytes,
            self._sums.cuts_tensors,
        )
        return unpack(self._sums.sum(tensors, buckets), buckets, tensors)

    def _wire_dtype_of(self, dtype: tf.DType) -> tf.DType:
        if dtype == tf.float32 and self._wire_dtype is not None:
            return self._wire_dtype
        return _default_wire_dtype(dtype)


def _default_wire_dtype(dtype: tf.DType) -> tf.DType:
    try:
        return _WIRE_DTYPES[dtype]
    except KeyError:
        names = ", ".join(known.name for known in _WIRE_DTYPES)
        raise TypeError(
            f"Tensors to sum over replicas must have one of these dtypes: {names}. "
            f"Received: {dtype.name}. Cast the tensor first."
        ) from None
