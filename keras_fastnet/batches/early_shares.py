"""Takes a worker's share of each batch before the functions of `Dataset.map` run.

A pipeline such as `source.map(load).shuffle(n).batch(b)` is taken apart into a source,
`source.shuffle(n)`, and the stages that its elements then pass one by one, in order. Of
every `b` elements of the source, only those of the worker's shares pass the stages.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras import datasets as upstream
from keras_fastnet._keras.map_functions import MapFunction
from keras_fastnet.batches.fingerprints import fingerprint_of_sample
from keras_fastnet.batches.global_batch import (
    GlobalBatch,
    bounds,
    count_examples,
    rows_of,
)
from keras_fastnet.batches.stages import (
    IN_ORDER,
    Passed,
    Split,
    in_rows,
    is_by_example,
    once,
    reason_to_stay,
    split,
)

_SAMPLES = 64
# Elements up to this size are joined to batches, of which shares are rows. Larger ones
# would be copied: they go through windows, which take some microseconds for each.
_SMALL_BYTES = 4096
# For up to so many small elements a call of the functions of `map`. A call costs 15 us,
# where all work on a line of text takes 50; more elements a call save little more.
_AT_ONCE = 4
# Kinds of datasets after which another batch may be the first.
_REORDERED = ("shuffle", "skip")


@dataclasses.dataclass
class EarlyShares:
    """How the workers take their shares of a pipeline's batches early.

    Attributes:
        examples: The pipeline up to `batch`, taken apart.
        batch: The arguments of `batch` or `padded_batch`.
        after: The stages behind it, in order.
        element_spec: What `batch` joins.
    """

    examples: Split
    batch: upstream.BatchArguments
    after: list[Passed]
    element_spec: Any

    def passes(self, stage: tf.data.Dataset) -> bool:
        """Returns whether a stage before `batch` sees the worker's elements alone.

        Args:
            stage: The user's dataset.
        """
        return any(passed.covers(stage) for passed in self.examples.passed)

    def parts(
        self, positions: Sequence[int], replicas: int, offset: int
    ) -> tf.data.Dataset:
        """Returns this worker's part of every batch.

        Args:
            positions: Which shares the worker's devices take.
            replicas: Number of replicas.
            offset: Added to the seeds of random operations.

        Returns:
            The examples of the shares, one share after the other; and, for each of
            them, a header for `cut`.
        """
        source, passed = self.examples.source, self.examples.passed
        size = _most(self.batch, positions, replicas)
        at_once = self.at_once(size)
        rows = self._in_rows()
        group = source.batch if rows else source.window
        # The workers compare the first batch of an epoch.
        reordered = any(upstream.kind(each.stage) in _REORDERED for each in self.after)

        @tf.autograph.experimental.do_not_convert
        def taken(number: tf.Tensor, elements: Any) -> Any:
            def ranges(count: tf.Tensor) -> list[tuple[Any, Any]]:
                return _ranges(count, positions, replicas, self.batch.size, size)

            compared = tf.logical_or(number == 0, reordered)
            if rows:
                return _taken_rows(elements, ranges, compared, at_once)
            return _taken(elements, ranges, compared)

        @tf.autograph.experimental.do_not_convert
        def joined(elements: Any, header: tf.Tensor) -> tuple[Any, tf.Tensor]:
            count = self._made(header[0, 0], positions, replicas)

            def of_batch(leaf: tf.Tensor) -> tf.Tensor:
                leaf = tf.reshape(leaf, [-1, *leaf.shape[2:]])
                return leaf if self.batch.drop_remainder else leaf[:count]

            return tf.nest.map_structure(of_batch, elements), header

        groups = group(self.batch.size, drop_remainder=self.batch.drop_remainder)
        numbered = groups.enumerate()
        # For rows, `flat_map` would make a dataset of each batch.
        pairs = numbered.map(taken).unbatch() if rows else numbered.flat_map(taken)
        for stage in [in_rows(passed, at_once)] if at_once > 1 else passed:
            pairs = stage.apply(pairs, offset)
        pairs = self.batch.batched(pairs, size // at_once)
        if at_once > 1:
            pairs = pairs.map(joined)
        key = tuple(positions), replicas, offset
        for stage in self.after:
            read = pairs
            pairs = once(stage.stage, key, lambda: stage.apply(read, offset))  # noqa: B023
        return pairs

    def cut(
        self, part: Any, header: tf.Tensor, positions: Sequence[int], replicas: int
    ) -> list[GlobalBatch]:
        """Returns the shares of this worker's devices, in a graph.

        Args:
            part: The examples of all of them.
            header: What `parts` yields with them.
            positions: Which shares they are.
            replicas: Number of replicas.
        """
        rows: Any = header[0, 0]
        own: Any = self.batch.size if self.batch.drop_remainder else rows
        sizes = _sizes(own, positions, replicas)
        most = _most(self.batch, positions, replicas)
        full = most == sum(_sizes(self.batch.size, positions, replicas))
        if any(stage.change for stage in self.after):
            tf.debugging.assert_equal(
                count_examples(part),
                self._made(rows, positions, replicas),
                "A function that is marked with `keras_fastnet.by_example` must return "
                "a row for each row that it is given.",
            )
        shares, first = [], 0
        for position, size in zip(positions, sizes, strict=True):
            start, stop = bounds(rows, position, replicas)
            alone = full and len(positions) == 1
            data = part if alone else rows_of(part, first, first + size)
            shares.append(GlobalBatch(data, stop - start, rows, header[0, 1:]))
            first += size
        return shares

    def at_once(self, size: int) -> int:
        """Returns for how many elements the functions of `map` are called at once.

        Args:
            size: Number of examples that a worker makes for a batch.
        """
        passed = self.examples.passed
        useful = any(each.change for each in passed) and self.batch.padding is None
        repeatable = all(each.repeatable for each in passed)
        if useful and repeatable and self._in_rows() and _small(self.element_spec):
            return math.gcd(size, _AT_ONCE)
        return 1

    def _in_rows(self) -> bool:
        """Returns whether elements are joined to batches, of which shares are rows.

        A string may be a record with an image, unless what is made of it is small.
        """
        source = self.examples.source.element_spec
        strings = any(s.dtype == tf.string for s in upstream.components(source))
        return _small(source) and (not strings or _small(self.element_spec))

    def _made(
        self, rows: tf.Tensor, positions: Sequence[int], replicas: int
    ) -> tf.Tensor:
        """Returns how many examples a worker makes for a batch, in a graph.

        Args:
            rows: Number of elements of the batch.
            positions: Which shares the worker's devices take.
            replicas: Number of replicas.
        """
        sizes = tf.add_n(_sizes(rows, positions, replicas))
        most = _most(self.batch, positions, replicas)
        return tf.where(rows == self.batch.size, np.int64(most), sizes)


def early_shares(dataset: tf.data.Dataset) -> EarlyShares | str:
    """Returns how shares of a dataset's batches are taken early.

    Args:
        dataset: A dataset of global batches.

    Returns:
        A text that says why not, where they cannot or where it would save nothing.
    """
    if not tf.executing_eagerly():
        return "the pipeline is made within a tf.function"
    after: list[Passed] = []
    stage = dataset
    while (kind := upstream.kind(stage)) not in ("batch", "padded_batch"):
        stage_input = (upstream.inputs(stage) or [None])[0]
        if kind == "map":
            function = MapFunction(stage)
            if not is_by_example(function):
                return f"map ({function.name}) behind batch may look at whole batches"
            reason = reason_to_stay(function)
            if reason:
                return f"{reason} in map ({function.name})"
            if any(map(_is_fixed, upstream.components(stage_input.element_spec))):
                return f"map ({function.name}) was traced for whole batches alone"
            after.append(Passed(stage, function.call, function.parallel_calls))
        elif kind in IN_ORDER or (kind == "cache" and upstream.in_memory(stage)):
            after.append(Passed(stage))
        else:
            return f"{upstream.class_name(stage)} stands behind the last batch"
        stage = stage_input
    if kind == "padded_batch" and upstream.pads_to_longest(stage):
        return "padded_batch pads to the longest example of the whole batch"
    (before,) = upstream.inputs(stage)
    examples = split(before)
    if not any(passed.change for passed in [*examples.passed, *after]):
        nothing = "no function of map could run on a part of the batch alone"
        return "; ".join([nothing, *examples.reasons.values()])
    for spec in (before.element_spec, examples.source.element_spec):
        for leaf in upstream.components(spec):
            if type(leaf) not in (tf.TensorSpec, tf.RaggedTensorSpec):
                return f"elements hold a {type(leaf).__name__}"
    arguments = upstream.batch_arguments(stage)
    return EarlyShares(examples, arguments, after[::-1], before.element_spec)


def _is_fixed(spec: Any) -> bool:
    """Returns whether batches that a specification describes have one size."""
    return spec.shape.rank is not None and spec.shape[0] is not None


def _sizes(rows: Any, positions: Sequence[int], replicas: int) -> list[Any]:
    """Returns the numbers of examples that shares are made of, fillers included."""
    sizes = []
    for position in positions:
        start, stop = bounds(rows, position, replicas)
        larger = tf.maximum if isinstance(rows, tf.Tensor) else np.maximum
        sizes.append(larger(stop - start, 1))
    return sizes


def _most(
    arguments: upstream.BatchArguments, positions: Sequence[int], replicas: int
) -> int:
    """Returns the largest number of examples that a worker makes for a batch.

    It may be that of the last batch, which is smaller: of 8 examples the second of
    three replicas takes 3, of 7 examples the third.
    """
    first = arguments.size if arguments.drop_remainder else 1
    rows = np.arange(first, arguments.size + 1)
    return int(np.max(sum(_sizes(rows, positions, replicas))))


def _small(element_spec: Any) -> bool:
    """Returns whether elements are tensors of known shapes that take few bytes."""
    return all(
        isinstance(spec, tf.TensorSpec)
        and spec.shape.is_fully_defined()
        and spec.shape.num_elements() * spec.dtype.size <= _SMALL_BYTES
        for spec in upstream.components(element_spec)
    )


def _ranges(
    rows: tf.Tensor, positions: Sequence[int], replicas: int, batch: int, most: int
) -> list[tuple[Any, Any]]:
    """Returns where this worker's shares of one batch begin, and their sizes.

    Args:
        rows: Number of elements of the batch.
        positions: Which shares the worker's devices take.
        replicas: Number of replicas.
        batch: Number of examples in a whole batch.
        most: Number of elements to take of a whole batch; there may be one to cut
            off, so that `batch` joins as many of every batch but the last.
    """
    sizes = _sizes(rows, positions, replicas)
    found = [
        (bounds(rows, position, replicas)[0], size)
        for position, size in zip(positions, sizes, strict=True)
    ]
    if most > sum(_sizes(batch, positions, replicas)):
        found.append((np.int64(0), tf.where(rows == batch, most - sum(sizes), 0)))
    return found


_Ranges = Callable[[tf.Tensor], list[tuple[Any, Any]]]


def _taken_rows(
    batch: Any, ranges: _Ranges, compared: tf.Tensor, at_once: int
) -> tuple[Any, tf.Tensor]:
    """Returns the elements for this worker's shares of one batch as rows, in a graph.

    Args:
        batch: The elements of the batch, joined.
        ranges: Returns which to take, of how many.
        compared: Whether the workers may compare this batch.
        at_once: Number of elements in a row; 1 for an element itself. The first one
            fills up the last row.
    """
    parts = upstream.components(batch)
    rows = tf.shape(parts[0], tf.int64)[0]
    taken = ranges(rows)

    count = tf.add_n([tf.cast(size, tf.int64) for _, size in taken])

    def own(part: tf.Tensor) -> tf.Tensor:
        pieces = [part[start : start + size] for start, size in taken]
        if at_once > 1:
            pieces.append(tf.repeat(pieces[0][:1], -count % at_once, 0))
        joined = pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)
        if at_once == 1:
            return joined
        return tf.reshape(joined, [-1, at_once, *part.shape[1:]])

    header = _header(rows, parts, lambda part, stride: part[::stride], compared)
    headers = tf.repeat(header[None], -(-count // at_once), 0)
    return tf.nest.map_structure(own, batch), headers


def _taken(window: Any, ranges: _Ranges, compared: tf.Tensor) -> tf.data.Dataset:
    """Returns the elements for this worker's shares of one batch, in a graph.

    Args:
        window: The elements of the batch, as datasets of their components.
        ranges: Returns which to take, of how many.
        compared: Whether the workers may compare this batch.
    """
    parts = upstream.components(window)
    rows = parts[0].cardinality()
    elements = tf.data.Dataset.zip(window)
    shares = [elements.skip(start).take(size) for start, size in ranges(rows)]
    own = functools.reduce(tf.data.Dataset.concatenate, shares)
    header = _header(rows, parts, _sample, compared)
    return tf.data.Dataset.zip((own, tf.data.Dataset.from_tensors(header).repeat()))


def _header(
    rows: tf.Tensor, parts: list[Any], sample: Callable[..., Any], compared: tf.Tensor
) -> tf.Tensor:
    """Returns the number of a batch's elements, and its fingerprint.

    Args:
        rows: Number of elements.
        parts: Their components.
        sample: Returns every n-th element of one component.
        compared: Whether the workers may compare this batch.
    """

    def marks() -> tf.Tensor:
        stride = tf.maximum(-(-rows // _SAMPLES), 1)
        return fingerprint_of_sample([sample(part, stride) for part in parts], rows)

    none = tf.fill([len(parts)], np.int64(-1))
    return tf.concat([[rows], tf.cond(compared, marks, lambda: none)], 0)


def _sample(part: tf.data.Dataset, stride: tf.Tensor) -> tf.Tensor | None:
    """Returns some elements of one component; `None` if they may differ in shape."""
    spec = part.element_spec
    if not (isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()):
        return None
    return part.shard(stride, 0).batch(_SAMPLES).get_single_element()
