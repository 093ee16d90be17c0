"""Buckets: many tensors summed in few vectors."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of one tensor, flattened.

    Attributes:
        index: The tensor's position in the list.
        start: First element.
        stop: One after the last element; `None` for all of a tensor of unknown size.
    """

    index: int
    start: int
    stop: int | None


def plan_buckets(
    sizes: Sequence[int | None], capacity: int | None
) -> list[list[Piece]]:
    """Cuts tensors into buckets, the last tensor first.

    Gradients are listed in the order of the forward pass, so the last are the first
    that the backward pass has ready: their bucket can leave while the others are
    still being computed (Li et al. 2020, "PyTorch Distributed", section 3.2.3).

    Args:
        sizes: Elements of each tensor; `None` where unknown.
        capacity: Elements of a bucket; `None` for one bucket of any size.

    Returns:
        The pieces of every bucket. Buckets are filled to the last element, so large
        tensors are spread over several. One of unknown size has its own bucket.
    """
    buckets: list[list[Piece]] = []
    free = 0
    for index in reversed(range(len(sizes))):
        size = sizes[index]
        if size is None:
            buckets.append([Piece(index, 0, None)])
            free = 0
            continue
        start = 0
        while start < size:
            if free == 0:
                buckets.append([])
                free = capacity or sum(s for s in sizes if s is not None)
            stop = min(size, start + free)
            buckets[-1].append(Piece(index, start, stop))
            free -= stop - start
            start = stop
    return buckets


def pack(
    tensors: Sequence[tf.Tensor], pieces: Sequence[Piece], multiple: int
) -> tf.Tensor:
    """Joins pieces of tensors to one vector.

    Args:
        tensors: Tensors of one dtype and any shapes.
        pieces: What belongs into the vector, in order.
        multiple: What the vector's length is padded to a multiple of, with zeros.

    Returns:
        The vector.
    """
    parts = []
    for piece in pieces:
        flat = tf.reshape(tensors[piece.index], [-1])
        parts.append(flat[piece.start : piece.stop])
    length = sum((_length(part) for part in parts), start=0)
    missing = -length % multiple
    if not isinstance(missing, int) or missing > 0:
        parts.append(tf.zeros([missing], parts[0].dtype))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)


def unpack(
    vectors: Sequence[tf.Tensor],
    buckets: Sequence[Sequence[Piece]],
    tensors: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """Undoes `pack`.

    Args:
        vectors: One vector for each bucket.
        buckets: Their pieces.
        tensors: What was packed, for the shapes.

    Returns:
        Tensors with the values in `vectors`.
    """
    found: list[list[tf.Tensor]] = [[] for _ in tensors]
    for vector, pieces in zip(vectors, buckets, strict=True):
        start = 0
        for piece in pieces:
            stop = None if piece.stop is None else start + piece.stop - piece.start
            if stop is None:
                stop = tf.size(tensors[piece.index])
            found[piece.index].append(vector[start:stop])
            start = stop
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


def _length(vector: tf.Tensor) -> int | tf.Tensor:
    static = vector.shape[0]
    return tf.size(vector) if static is None else static
