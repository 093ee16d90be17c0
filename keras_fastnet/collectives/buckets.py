"""Buckets: many tensors summed in few vectors."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

# TensorFlow shares a part of a vector, instead of copying it, where it begins so.
_ALIGNED_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of one tensor, flattened, and its place in a bucket.

    Attributes:
        index: The tensor's position in the list.
        start: First element.
        stop: One after the last element; `None` for all of a tensor of unknown size.
        place: Where the piece begins in the bucket.
    """

    index: int
    start: int
    stop: int | None
    place: int

    def of(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the elements.

        Args:
            tensors: The list.
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
    """Puts tensors into buckets, the last tensor first.

    Gradients are listed in the order of the forward pass, so the last are the first
    that the backward pass has ready: their bucket can leave while the others are
    still being computed (Li et al. 2020, "PyTorch Distributed", section 3.2.3).

    Args:
        sizes: Elements of each tensor; `None` where unknown.
        dtype: Their dtype.
        capacity: Bytes of a bucket; `None` for one bucket of any size.
        cut: Whether a tensor may be spread over several buckets. Where not, a bucket
            takes the tensor that fills it whole. Defaults to `True`.

    Returns:
        The pieces of every bucket. A tensor of unknown size has its own.
    """
    step = _ALIGNED_BYTES // dtype.size
    limit = None if capacity is None else max(1, capacity // dtype.size)
    buckets: list[Bucket] = []
    # The first element that is free in the last bucket; `None` where it is closed.
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
    """Takes vectors apart.

    Args:
        vectors: One vector for each bucket.
        buckets: Their pieces.
        tensors: What was in them, for the shapes.

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
            found[piece.index].append(vector[piece.place : piece.place + length])
    results = []
    for tensor, parts in zip(tensors, found, strict=True):
        if not parts:  # without elements, and so in no bucket
            results.append(tensor)
            continue
        flat = parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
        shaped = tf.reshape(flat, tf.shape(tensor))
        shaped.set_shape(tensor.shape)
        results.append(shaped)
    return results
