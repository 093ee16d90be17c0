"""Packs many tensors into few vectors, called buckets."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

# TensorFlow slices a vector without a copy where the slice starts at a multiple.
_ALIGNED_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Piece:
    """A slice of one flattened tensor, and its position in a bucket.

    Attributes:
        index: The tensor's position in the list.
        start: First element.
        stop: One after the last element; `None` for all of a tensor of unknown size.
        offset: The bucket's element at which the piece begins.
    """

    index: int
    start: int
    stop: int | None
    offset: int

    def of(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the elements of the piece.

        Args:
            tensors: The list of tensors.
        """
        flat = tf.reshape(tensors[self.index], [-1])
        whole = self.start == 0 and self.stop in (None, flat.shape[0])
        return flat if whole else flat[self.start : self.stop]


Bucket = list[Piece]


def plan_buckets(
    sizes: Sequence[int | None],
    dtype: tf.DType,
    capacity: int | None,
    cut: bool = True,
) -> list[Bucket]:
    """Assigns tensors to buckets, the last tensor first.

    Gradients are listed in the order of the forward pass, so the backward pass computes
    the last ones first: their bucket can be sent while the others are still being
    computed (Li et al. 2020, "PyTorch Distributed", section 3.2.3).

    Args:
        sizes: Elements of each tensor; `None` where unknown.
        dtype: Their dtype.
        capacity: Bytes of a bucket; `None` for one bucket of any size.
        cut: Whether a tensor may be split over several buckets. If not, a bucket takes
            the whole of the tensor that fills it. Defaults to `True`.

    Returns:
        The pieces of every bucket. A tensor of unknown size has a bucket to itself.
    """
    step = _ALIGNED_BYTES // dtype.size
    limit = None if capacity is None else max(1, capacity // dtype.size)
    buckets: list[Bucket] = []
    # First free element of the last bucket; `None` if that bucket is closed.
    free: int | None = None
    for index in reversed(range(len(sizes))):
        size = sizes[index]
        if size is None:
            buckets.append([Piece(index, 0, None, 0)])
            free = None
            continue
        start = 0
        while start < size:
            if free is None or (limit is not None and free >= limit):
                buckets.append([])
                free = 0
            length = size - start
            if limit is not None and cut:
                length = min(length, limit - free)
            buckets[-1].append(Piece(index, start, start + length, free))
            start += length
            free += -(-length // step) * step
    return buckets


def unpack(
    vectors: Sequence[tf.Tensor],
    buckets: Sequence[Bucket],
    tensors: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Splits bucket vectors into tensors.

    Args:
        vectors: One vector for each bucket.
        buckets: Their pieces.
        tensors: The tensors that were packed, for their shapes.

    Returns:
        Tensors with the values in `vectors`.
    """
    found: list[list[tf.Tensor]] = [[] for _ in tensors]
    for vector, pieces in zip(vectors, buckets, strict=True):
        for piece in pieces:
            if piece.stop is None:
                length = tf.size(tensors[piece.index])
            else:
                length = piece.stop - piece.start
            found[piece.index].append(vector[piece.offset : piece.offset + length])
    results = []
    for tensor, parts in zip(tensors, found, strict=True):
        if not parts:  # An empty tensor is in no bucket.
            results.append(tensor)
            continue
        flat = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        shaped = tf.reshape(flat, tf.shape(tensor))
        shaped.set_shape(tensor.shape)
        results.append(shaped)
    return results
