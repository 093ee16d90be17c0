"""Takes a pipeline apart into a source and the stages that its elements then pass."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_fastnet._keras import datasets as upstream
from keras_fastnet._keras.map_functions import MapFunction, function_name

IN_ORDER = ("prefetch", "options", "shuffle", "repeat", "take", "skip")
"""Kinds of datasets that pass elements on as they are."""

_BY_EXAMPLE = "_fastnet_by_example"
# Functions of Keras that compute each row of a batch from the same row, by the ends of
# their qualified names.
_KERAS_BY_EXAMPLE = ("class_weights_map_fn",)


def by_example(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function for `Dataset.map` behind `batch` as one of single examples.

    Each worker then applies it to its part of the batch alone. Each row of its results
    must depend on the same row of its arguments only, and there must be as many.

    Args:
        function: The function, of a batch.

    Returns:
        A function that does the same.

    Example:
        ```python
        dataset.batch(64).map(keras_fastnet.by_example(lambda x, y: (x / 255, y)))
        ```
    """

    def of_examples(*batch: Any) -> Any:
        return function(*batch)

    setattr(of_examples, _BY_EXAMPLE, True)
    of_examples.__name__ = function_name(function)
    return of_examples


def is_by_example(function: MapFunction) -> bool:
    """Returns whether a function treats the rows of a batch separately."""
    name = getattr(function.python, "__qualname__", "")
    return hasattr(function.python, _BY_EXAMPLE) or name.endswith(_KERAS_BY_EXAMPLE)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage that elements pass one by one in order, after the share was taken.

    Attributes:
        dataset: The user's dataset.
        change: Changes an element, given the offset of seeds; `None` for a stage that
            does not look into elements.
        parallel_calls: The argument of `Dataset.map`.
        repeatable: Whether `change` may run again for an element without a trace.
            Defaults to `True`.
    """

    dataset: tf.data.Dataset
    change: Callable[[Any, int], Any] | None = None
    parallel_calls: int | None = None
    repeatable: bool = True

    @classmethod
    def of_map(cls, dataset: tf.data.Dataset, function: MapFunction) -> "Stage":
        """Returns the stage of a dataset of kind `"map"`.

        Args:
            dataset: The dataset.
            function: Its function.
        """
        return cls(
            dataset, function.call, function.parallel_calls, function.is_repeatable
        )

    def apply(self, pairs: tf.data.Dataset, offset: int) -> tf.data.Dataset:
        """Returns the elements after the stage.

        Args:
            pairs: Elements and what is carried along with each.
            offset: Added to the seeds of random operations.
        """
        if self.change is None:
            return upstream.again(self.dataset, pairs)
        change = self.change

        @tf.autograph.experimental.do_not_convert
        def changed(element: Any, header: tf.Tensor) -> Any:
            return change(element, offset), header

        if self.parallel_calls is None:
            return pairs.map(changed)
        # In order, also where the user allows another: shares are told apart by it.
        return pairs.map(changed, self.parallel_calls, deterministic=True)


@dataclasses.dataclass
class Split:
    """A dataset as a source and the stages that its elements then pass.

    Attributes:
        source: The dataset whose elements every worker reads.
        stages: Those of `map`, in order.
        reason: Why the function of a `map` of the source must see all elements; `""`
            without one.
    """

    source: tf.data.Dataset
    stages: list[Stage] = dataclasses.field(default_factory=list)
    reason: str = ""


def split(dataset: tf.data.Dataset) -> Split:
    """Takes a dataset of examples apart."""
    kind = upstream.kind(dataset)
    if kind == "map":
        function = MapFunction(dataset)
        if reason := function.why_whole():
            return Split(dataset, reason=reason)
        inner = split(*upstream.inputs(dataset))
        stages = [*inner.stages, Stage.of_map(dataset, function)]
        return dataclasses.replace(inner, stages=stages)
    if kind not in IN_ORDER:
        return Split(dataset)
    inner = split(*upstream.inputs(dataset))
    if not inner.stages:
        # As it is: a `shuffle` goes on where the user's own iterators left it.
        return Split(dataset, reason=inner.reason)
    source = once(dataset, None, lambda: upstream.again(dataset, inner.source))
    return dataclasses.replace(inner, source=source)


def in_rows(stages: list[Stage], rows: int) -> Stage:
    """Returns one stage for several, whose elements are rows of so many of theirs.

    A call of a function costs `tf.data` some microseconds, a large part of the time
    where the function has little to do.

    Args:
        stages: Those of `map`. What the last one returns are tensors of known shapes.
        rows: Number of their elements in one of the stage.
    """

    def change(elements: Any, offset: int) -> Any:
        columns = [tf.unstack(leaf, rows) for leaf in tf.nest.flatten(elements)]
        made = []
        for leaves in zip(*columns, strict=True):
            element = tf.nest.pack_sequence_as(elements, leaves)
            for stage in stages:
                element = stage.change(element, offset) if stage.change else element
            made.append(element)
        return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *made)

    calls = [stage.parallel_calls for stage in stages if stage.parallel_calls]
    return Stage(stages[-1].dataset, change, calls[0] if calls else None)


def once(
    stage: tf.data.Dataset, key: Any, make: Callable[[], tf.data.Dataset]
) -> tf.data.Dataset:
    """Returns the dataset in the place of a stage, the same for every training.

    A `shuffle` has another order whenever it is begun, a `cache` keeps what was read.

    Args:
        stage: The user's dataset.
        key: What else the dataset in its place depends on.
        make: Returns the dataset.
    """
    made = vars(stage).setdefault("_fastnet_moved", {})
    if key not in made:
        made[key] = make()
    return made[key]
