"""Takes a worker's share of each batch before the functions of `Dataset.map` run.

A pipeline such as `source.map(load).shuffle(n).batch(b)` is taken apart into a source,
`source.shuffle(n)`, and the stages that its elements then pass one by one, in order. Of
every `b` elements of the source, only those of the worker's shares pass the stages.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_fastnet._keras import datasets as upstream
from keras_fastnet._keras.map_functions import MapFunction
from keras_fastnet.batches.fingerprints import fingerprint
from keras_fastnet.batches.global_batch import (
    GlobalBatch,
    bounds,
    count_examples,
    rows_of,
)
from keras_fastnet.batches.stages import (
    IN_ORDER,
    Split,
    Stage,
    in_rows,
    is_by_example,
    once,
    split,
)

# Functions that make elements of up to so many bytes are called for up to so many
# elements at once. A call costs 15 us, where all work on a line of text takes 50; more
# elements a call save little more.
_SMALL_BYTES = 4096
_AT_ONCE = 4
# Kinds of datasets after which another batch may be the first.
_REORDERED = ("shuffle", "skip")


@dataclasses.dataclass(frozen=True)
class EarlyShares:
    """How a worker takes its shares of a pipeline's batches early.

    Attributes:
        examples: The pipeline up to `batch`, taken apart.
        size: The argument `batch_size` of `batch`.
        drop_remainder: Its argument `drop_remainder`.
        after: The stages behind it, in order.
        element_spec: What `batch` joins.
        positions: Which shares the worker's devices take.
        replicas: Number of replicas.
    """

    examples: Split
    size: int
    drop_remainder: bool
    after: list[Stage]
    element_spec: Any
    positions: Sequence[int]
    replicas: int

    def parts(self, offset: int) -> tf.data.Dataset:
        """Returns this worker's part of every batch.

        Args:
            offset: Added to the seeds of random operations.

        Returns:
            The examples of the shares, one share after the other; and, for each of
            them, a header for `cut`.
        """
        stages = self.examples.stages
        at_once = self.at_once()
        # The workers compare the first batch of an epoch.
        reordered = any(
            upstream.kind(stage.dataset) in _REORDERED for stage in self.after
        )

        @tf.autograph.experimental.do_not_convert
        def taken(number: tf.Tensor, elements: Any) -> tuple[Any, tf.Tensor]:
            rows = count_examples(elements)
            own = self._own_rows(rows, at_once)
            compared = tf.logical_or(number == 0, reordered)
            header = self._header(rows, elements, compared)
            headers = tf.repeat(header[None], tf.size(own) // at_once, 0)

            def take(leaf: tf.Tensor) -> tf.Tensor:
                leaf = tf.gather(leaf, own)
                if at_once == 1:
                    return leaf
                return tf.reshape(leaf, [-1, at_once, *leaf.shape[1:]])

            return tf.nest.map_structure(take, elements), headers

        @tf.autograph.experimental.do_not_convert
        def joined(elements: Any, header: tf.Tensor) -> tuple[Any, tf.Tensor]:
            count = self._made(header[0, 0])

            def join(leaf: tf.Tensor) -> tf.Tensor:
                leaf = tf.reshape(leaf, [-1, *leaf.shape[2:]])
                return leaf if self.drop_remainder else leaf[:count]

            return tf.nest.map_structure(join, elements), header

        batches = self.examples.source.batch(self.size, self.drop_remainder)
        pairs = batches.enumerate().map(taken).unbatch()
        for stage in [in_rows(stages, at_once)] if at_once > 1 else stages:
            pairs = stage.apply(pairs, offset)
        pairs = pairs.batch(self._most // at_once, self.drop_remainder)
        if at_once > 1:
            pairs = pairs.map(joined)
        key = tuple(self.positions), self.replicas, offset
        for stage in self.after:
            read = pairs
            pairs = once(stage.dataset, key, lambda: stage.apply(read, offset))  # noqa: B023
        return pairs

    def cut(self, part: Any, header: tf.Tensor) -> tuple[GlobalBatch, ...]:
        """Returns the shares of this worker's devices, in a graph.

        Args:
            part: The examples of all of them.
            header: What `parts` yields with them.
        """
        rows: Any = header[0, 0]
        own: Any = self.size if self.drop_remainder else rows
        full = self._most == sum(self._sizes(self.size))
        if any(stage.change for stage in self.after):
            tf.debugging.assert_equal(
                count_examples(part),
                self._made(rows),
                "A function that is marked with `keras_fastnet.by_example` must return "
                "a row for each row that it is given.",
            )
        shares, first = [], 0
        for position, size in zip(self.positions, self._sizes(own), strict=True):
            start, stop = bounds(rows, position, self.replicas)
            alone = full and len(self.positions) == 1
            data = part if alone else rows_of(part, first, first + size)
            shares.append(GlobalBatch(data, stop - start, rows, header[0, 1:]))
            first += size
        return tuple(shares)

    def at_once(self) -> int:
        """Returns for how many elements the functions of `map` are called at once."""
        stages = self.examples.stages
        small = _small(self.examples.source.element_spec) and _small(self.element_spec)
        if small and stages and all(stage.repeatable for stage in stages):
            return math.gcd(self._most, _AT_ONCE)
        return 1

    @property
    def _most(self) -> int:
        """Largest number of examples that the worker makes for a batch.

        It may be that of the last batch, which is smaller: of 10 examples the fourth
        of six replicas takes 1, of 9 examples 2.
        """
        first = self.size if self.drop_remainder else 1
        return int(np.max(sum(self._sizes(np.arange(first, self.size + 1)))))

    def _sizes(self, rows: Any) -> list[Any]:
        """Returns the numbers of examples of the worker's shares, fillers included."""
        larger = tf.maximum if isinstance(rows, tf.Tensor) else np.maximum
        found = (bounds(rows, position, self.replicas) for position in self.positions)
        return [larger(stop - start, 1) for start, stop in found]

    def _made(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns how many examples the worker makes for a batch, in a graph.

        As many of every batch but the last, so that they can be batched again.
        """
        sizes = tf.add_n(self._sizes(rows))
        return tf.where(rows == self.size, np.int64(self._most), sizes)

    def _own_rows(self, rows: tf.Tensor, multiple: int) -> tf.Tensor:
        """Returns which elements of a batch the worker takes, in a graph.

        Args:
            rows: Number of elements of the batch.
            multiple: What their number must be a multiple of. The first one fills up.
        """
        starts = [bounds(rows, each, self.replicas)[0] for each in self.positions]
        own = tf.concat(
            [
                tf.range(start, start + size)
                for start, size in zip(starts, self._sizes(rows), strict=True)
            ],
            0,
        )
        made = -(-self._made(rows) // multiple) * multiple
        return tf.concat([own, tf.fill([made - tf.size(own, tf.int64)], own[0])], 0)

    @staticmethod
    def _header(rows: tf.Tensor, elements: Any, compared: tf.Tensor) -> tf.Tensor:
        """Returns the number of a batch's elements, and its fingerprint.

        Args:
            rows: Number of elements.
            elements: The elements, joined.
            compared: Whether the workers may compare this batch.
        """
        none = tf.fill([len(tf.nest.flatten(elements))], np.int64(-1))
        marks = tf.cond(compared, lambda: fingerprint(elements), lambda: none)
        return tf.concat([[rows], marks], 0)


def early_shares(
    dataset: tf.data.Dataset, positions: Sequence[int], replicas: int
) -> EarlyShares | str:
    """Returns how a worker takes its shares of a dataset's batches early.

    Args:
        dataset: A dataset of global batches.
        positions: Which shares of a batch the worker's devices take.
        replicas: Number of replicas.

    Returns:
        Where it cannot, a text that says why; `""` where it would save nothing.
    """
    if not tf.executing_eagerly():
        return "the pipeline is made within a tf.function"
    if not any(upstream.kind(stage) == "map" for stage in upstream.stages(dataset)):
        return ""
    after: list[Stage] = []
    stage = dataset
    while (kind := upstream.kind(stage)) != "batch":
        stage_input = (upstream.inputs(stage) or [None])[0]
        if kind == "map":
            function = MapFunction(stage)
            if not is_by_example(function):
                return f"{function.name} behind batch may look at whole batches"
            if reason := function.why_whole():
                return reason
            if any(map(_is_fixed, tf.nest.flatten(stage_input.element_spec))):
                return f"{function.name} was traced for whole batches alone"
            after.append(Stage.of_map(stage, function))
        elif kind in IN_ORDER or (kind == "cache" and not upstream.cache_file(stage)):
            after.append(Stage(stage))
        else:
            return f"{upstream.class_name(stage)} stands behind the last batch"
        stage = stage_input
    (before,) = upstream.inputs(stage)
    examples = split(before)
    if not examples.stages and not any(each.change for each in after):
        return examples.reason or f"{_blocking(before)} stands between map and batch"
    if not all(map(_is_dense, tf.nest.flatten(before.element_spec))):
        return "elements are no dense tensors"
    source = examples.source.element_spec
    if not all(_is_dense(s) and _is_known(s) for s in tf.nest.flatten(source)):
        return "elements of the source have no known shape"
    examples = dataclasses.replace(examples, source=upstream.in_order(examples.source))
    size, drop_remainder = upstream.batch_arguments(stage)
    return EarlyShares(
        examples,
        size,
        drop_remainder,
        after[::-1],
        before.element_spec,
        positions,
        replicas,
    )


def _blocking(dataset: tf.data.Dataset) -> str:
    """Returns the name of the last stage that does not pass elements on as they are."""
    while upstream.kind(dataset) in IN_ORDER:
        (dataset,) = upstream.inputs(dataset)
    return upstream.class_name(dataset)


def _is_dense(spec: Any) -> bool:
    return type(spec) is tf.TensorSpec


def _is_known(spec: Any) -> bool:
    return spec.shape.is_fully_defined()


def _is_fixed(spec: Any) -> bool:
    """Returns whether batches that a specification describes have one size."""
    return spec.shape.rank is not None and spec.shape[0] is not None


def _small(element_spec: Any) -> bool:
    """Returns whether elements are tensors of known shapes that take few bytes."""
    return all(
        _is_dense(spec)
        and _is_known(spec)
        and spec.shape.num_elements() * spec.dtype.size <= _SMALL_BYTES
        for spec in tf.nest.flatten(element_spec)
    )
