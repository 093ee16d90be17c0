"""Takes a pipeline apart into a source and the stages that its elements then pass."""

import dataclasses
import functools
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
    """Returns whether a function treats the rows of a batch separately.

    Args:
        function: The function.
    """
    name = getattr(function.python, "__qualname__", "")
    return hasattr(function.python, _BY_EXAMPLE) or name.endswith(_KERAS_BY_EXAMPLE)


@dataclasses.dataclass(frozen=True)
class Passed:
    """A stage that elements pass one by one in order, after the share was taken.

    Attributes:
        stage: The user's dataset.
        change: Changes an element, given the offset of seeds; `None` for a stage that
            does not look into elements.
        parallel_calls: The argument of `Dataset.map`.
        within: The stages that this one stands for. Defaults to `stage`.
        repeatable: Whether `change` may run again for an element without a trace.
            Defaults to `True`.
    """

    stage: tf.data.Dataset
    change: Callable[[Any, int], Any] | None = None
    parallel_calls: int | None = None
    within: tuple[tf.data.Dataset, ...] = ()
    repeatable: bool = True

    def covers(self, stage: tf.data.Dataset) -> bool:
        """Returns whether this is a stage, or one of those that it stands for.

        Args:
            stage: The user's dataset.
        """
        return any(each is stage for each in self.within or (self.stage,))

    def apply(self, pairs: tf.data.Dataset, offset: int) -> tf.data.Dataset:
        """Returns the elements after the stage.

        Args:
            pairs: Elements and what is carried along with each.
            offset: Added to the seeds of random operations.
        """
        if self.change is None:
            return upstream.again(self.stage, pairs)
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
        passed: The stages, in order.
        reasons: Why a stage is not among them, by the stage's `id`.
    """

    source: tf.data.Dataset
    passed: list[Passed] = dataclasses.field(default_factory=list)
    reasons: dict[int, str] = dataclasses.field(default_factory=dict)


def split(dataset: tf.data.Dataset) -> Split:
    """Takes a dataset of examples apart.

    Args:
        dataset: The dataset.
    """
    kind = upstream.kind(dataset)
    if kind == "map":
        function = MapFunction(dataset)
        reason = reason_to_stay(function)
        if reason:
            return Split(dataset, reasons={id(dataset): reason})
        inner = split(*upstream.inputs(dataset))
        stage = Passed(
            dataset,
            function.call,
            function.parallel_calls,
            repeatable=function.is_repeatable,
        )
        return Split(inner.source, [*inner.passed, stage], inner.reasons)
    if kind == "zip":
        return _split_zip(dataset)
    if kind == "concatenate":
        return _split_concatenate(dataset)
    if kind == "ragged":
        inner = split(*upstream.inputs(dataset))
        return dataclasses.replace(inner, passed=[*inner.passed, Passed(dataset)])
    if kind in IN_ORDER:
        inner = split(*upstream.inputs(dataset))
        if not inner.passed:
            # As it is: a `shuffle` goes on where the user's own iterators left it.
            return Split(dataset, reasons=inner.reasons)
        if kind == "prefetch":
            return dataclasses.replace(inner, passed=[*inner.passed, Passed(dataset)])
        source = once(dataset, None, lambda: upstream.again(dataset, inner.source))
        return dataclasses.replace(inner, source=source)
    return Split(dataset)


def _split_zip(dataset: tf.data.Dataset) -> Split:
    parts = [split(part) for part in upstream.inputs(dataset)]
    reasons = {key: text for part in parts for key, text in part.reasons.items()}
    if not any(part.passed for part in parts):
        return Split(dataset, reasons=reasons)

    def changed(number: int, change: Callable[[Any, int], Any]) -> Any:
        return lambda element, offset: upstream.with_component(
            dataset, element, number, lambda part: change(part, offset)
        )

    return Split(
        upstream.zipped(dataset, [part.source for part in parts]),
        [
            dataclasses.replace(passed, change=changed(number, passed.change))
            if passed.change
            else passed
            for number, part in enumerate(parts)
            for passed in part.passed
        ],
        reasons,
    )


def _split_concatenate(dataset: tf.data.Dataset) -> Split:
    parts = [split(part) for part in _concatenated(dataset)]
    reasons = {key: text for part in parts for key, text in part.reasons.items()}
    if not any(passed.change for part in parts for passed in part.passed):
        return Split(dataset, reasons=reasons)
    if any(part.source.element_spec != parts[0].source.element_spec for part in parts):
        reasons[id(dataset)] = "the elements of its sources differ in type or shape"
        return Split(dataset, reasons=reasons)
    # Each element with the number of its part, whose functions it then passes.
    marked = [
        tf.data.Dataset.zip((part.source, tf.data.Dataset.from_tensors(i).repeat()))
        for i, part in enumerate(parts)
    ]
    passed = [each for part in parts for each in part.passed]

    def change(pair: tuple[Any, tf.Tensor], offset: int) -> Any:
        element, number = pair

        def changed(part: Split) -> Any:
            # Of the branch's own graph.
            own = tf.nest.map_structure(tf.identity, element)
            return _changed(own, part.passed, offset)

        branches = [functools.partial(changed, part) for part in parts]
        return upstream.switched(dataset, number, branches)

    stage = _together(dataset, passed, change)
    source = functools.reduce(tf.data.Dataset.concatenate, marked)
    return Split(source, [stage], reasons)


def in_rows(passed: list[Passed], rows: int) -> Passed:
    """Returns one stage for several, whose elements are rows of so many of theirs.

    A call of a function costs `tf.data` some microseconds, a large part of the time
    where the function has little to do.

    Args:
        passed: The stages. What the last one returns are tensors of known shapes.
        rows: Number of their elements in one of the stage.
    """

    def change(elements: Any, offset: int) -> Any:
        columns = [tf.unstack(leaf, rows) for leaf in upstream.components(elements)]
        changed = [
            _changed(tf.nest.pack_sequence_as(elements, leaves), passed, offset)
            for leaves in zip(*columns, strict=True)
        ]
        return tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *changed)

    return _together(passed[-1].stage, passed, change)


def _changed(element: Any, passed: list[Passed], offset: int) -> Any:
    """Returns an element after several stages, in a graph."""
    for each in passed:
        element = each.change(element, offset) if each.change else element
    return element


def _together(
    stage: tf.data.Dataset, passed: list[Passed], change: Callable[[Any, int], Any]
) -> Passed:
    """Returns one stage in the place of several."""
    calls = [each.parallel_calls for each in passed if each.parallel_calls is not None]
    return Passed(
        stage,
        change,
        calls[0] if calls else None,
        tuple(stage for each in passed for stage in each.within or (each.stage,)),
        all(each.repeatable for each in passed),
    )


def _concatenated(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that a dataset yields one after the other."""
    if upstream.kind(dataset) != "concatenate":
        return [dataset]
    return [each for part in upstream.inputs(dataset) for each in _concatenated(part)]


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


def reason_to_stay(function: MapFunction) -> str:
    """Returns why a function must see all elements on every worker; `""` if not.

    Args:
        function: The function.
    """
    operations = function.order_dependent()
    if not operations:
        return ""
    return f"{', '.join(operations)} may depend on the elements' order"
