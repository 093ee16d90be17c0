"""`PyDataset`s: a queue for each iterator, and parts of batches for each worker."""

import contextlib
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils, py_dataset_adapter

from keras_fastnet.errors import ShardingError

_PART, _EXAMPLES = "part_of_batch", "examples_in_batch"
# Examples that workers compare in the first step of an epoch.
_COMPARED = 8
_Bounds = Callable[[int], list[tuple[int, int]]]


# Keras prepares the batches of a `PyDataset` with `workers` in one queue for all
# iterators: what one of them leaves there, such as the one that only looks at the first
# batch, the next one gets in addition to its own.
def separate_iterators(adapter: Any) -> None:
    """Gives each iterator over a `PyDataset` a queue of its own.

    With one for all of them some batches come twice, others never.

    Args:
        adapter: The `PyDatasetAdapter`.
    """
    adapter.enqueuer = None
    adapter._fastnet_first_only = False
    adapter._get_iterator = functools.partial(
        _separate_iterator, type(adapter)._get_iterator, adapter
    )


def _separate_iterator(original, adapter):
    dataset = adapter.py_dataset
    if adapter._fastnet_first_only:
        return iter([adapter._standardize_batch(dataset[0])])
    if not _in_parallel(dataset):
        return original(adapter)
    return map(
        adapter._standardize_batch, _prepared_in_parallel(dataset, adapter.shuffle)
    )


def _in_parallel(dataset: Any) -> bool:
    return dataset.workers > (0 if dataset.use_multiprocessing else 1)


def _prepared_in_parallel(dataset: Any, shuffle: bool) -> Iterator[Any]:
    enqueuer = py_dataset_adapter.OrderedEnqueuer(
        dataset,
        workers=dataset.workers,
        use_multiprocessing=dataset.use_multiprocessing,
        max_queue_size=dataset.max_queue_size,
        shuffle=shuffle,
    )
    enqueuer.start()
    try:
        yield from itertools.islice(enqueuer.get(), dataset.num_batches)
    finally:
        enqueuer.stop()


# A look at the first batch must not begin an epoch: `on_epoch_end`, which Keras also
# calls before the first epoch, and `on_epoch_begin` may still give it another order.
@contextlib.contextmanager
def first_only(adapter: Any) -> Iterator[None]:
    """Has iterators that begin in this context yield the first batch only.

    Args:
        adapter: The `PyDatasetAdapter`, after `separate_iterators`.
    """
    adapter._fastnet_first_only = True
    try:
        yield
    finally:
        adapter._fastnet_first_only = False


def dataset_of_parts(
    make: Callable[[Any], tf.data.Dataset], adapter: Any, workers: int
) -> Any:
    """Returns the dataset of global batches that Keras makes of a `PyDataset`.

    If the `PyDataset` can make parts of its batches, the attribute `fastnet_parts` is
    a `BatchParts`, and no whole batch is made.

    Args:
        make: `PyDatasetAdapter.get_tf_dataset`.
        adapter: The `PyDatasetAdapter`.
        workers: Number of worker processes.

    Raises:
        ValueError: The `PyDataset` has one of two methods that belong together.
        ShardingError: A part has another number of examples.
    """
    given = adapter.py_dataset
    has = [callable(getattr(given, name, None)) for name in (_PART, _EXAMPLES)]
    if has[0] != has[1]:
        name = type(given).__name__
        raise ValueError(
            f"A `PyDataset` with one of the methods `{_PART}` and `{_EXAMPLES}` must "
            f"have both. Received: `{name}` with `{[_EXAMPLES, _PART][has[0]]}` only. "
            f"Write `{name}.{[_PART, _EXAMPLES][has[0]]}`: docs/feeding_workers.md."
        )
    if not all(has) or workers < 2:
        return make(adapter)
    if adapter._output_signature is None:
        first = range(2 if given.num_batches is None else min(2, given.num_batches))
        with _draws_undone():
            parts = [
                _part(given, index, 0, max(1, _examples(given, index) // workers))
                for index in first
            ]
        adapter._output_signature = data_adapter_utils.get_tensor_spec(
            [adapter._standardize_batch(part) for part in parts]
        )
    dataset: Any = make(adapter)
    dataset.fastnet_parts = BatchParts(adapter, dataset)
    return dataset


@contextlib.contextmanager
def _draws_undone() -> Iterator[None]:
    """Restores the states of global random generators at its end.

    Workers make different parts, and may draw different numbers for them: the order of
    the first epoch must not depend on these.
    """
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


class BatchParts:
    """A `PyDataset` of whose batches each worker makes parts.

    Args:
        adapter: The `PyDatasetAdapter`.
        whole: Keras's dataset of whole batches.
    """

    def __init__(self, adapter: Any, whole: tf.data.Dataset):
        self._adapter = adapter
        self._whole = whole
        self._random: random.Random | None = None

    def first_whole(self) -> Any:
        """Returns the first batch, as a whole."""
        with first_only(self._adapter):
            return next(iter(self._whole))

    def parts(
        self, bounds: _Bounds, mark: Callable[[Any, int], tf.Tensor]
    ) -> tf.data.Dataset:
        """Returns parts of every batch, as a tuple.

        Args:
            bounds: Returns where the parts of a batch begin and end, by the number of
                its examples. It can be pickled.
            mark: Returns a hash of each tensor of the first examples of a batch, given
                the number of all its examples.

        Returns:
            Of each part: the data, with one filler if it is empty, its number of
            examples, that of the whole batch, and the hashes.
        """
        signature = self._adapter._output_signature
        leaves = len(tf.nest.flatten(signature))
        number = tf.TensorSpec([], tf.int64)
        part = signature, number, number, tf.TensorSpec([leaves], tf.int64)
        dataset = tf.data.Dataset.from_generator(
            lambda: self._generate(bounds, mark, leaves),
            output_signature=(part,) * len(bounds(1)),
        )
        if not _in_parallel(self._adapter.py_dataset):
            return dataset.prefetch(tf.data.AUTOTUNE)
        # As Keras does, where a pool prepares batches.
        return dataset.with_options(self._whole.options())

    def _generate(
        self, bounds: _Bounds, mark: Callable[[Any, int], tf.Tensor], leaves: int
    ) -> Iterator[Any]:
        given = self._adapter.py_dataset
        standardized = self._adapter._standardize_batch
        if self._adapter._fastnet_first_only:
            with _draws_undone():
                batches: Iterator[Any] = iter([_Parts(given, bounds, [0])[0]])
        else:
            parts = _Parts(given, bounds, self._order())
            parallel = _in_parallel(given)
            batches = _prepared_in_parallel(parts, False) if parallel else iter(parts)
        marks: Any = None
        for index, examples, own in batches:
            if marks is None:
                # In this process: a child of a pool must not run TensorFlow.
                compared = _part(given, index, 0, min(examples, _COMPARED))
                marks = mark(standardized(compared), examples)
            yield tuple(
                (standardized(part), stop - start, examples, marks)
                for (start, stop), part in zip(bounds(examples), own, strict=True)
            )
            marks = np.full(leaves, -1, np.int64)

    def _order(self) -> Sequence[int] | None:
        """Returns the batches of an epoch, in order; `None` if they never end."""
        batches = self._adapter.py_dataset.num_batches
        if batches is None:
            return None
        order = list(range(batches))
        if self._adapter.shuffle:
            if self._random is None:
                # Not the module's own: a dataset may draw from it while it makes
                # parts, which differ between workers.
                self._random = random.Random()
                self._random.setstate(random.getstate())
            self._random.shuffle(order)
            # As on one device, for what the program draws afterwards.
            random.shuffle(list(range(batches)))
        return order


class _Parts(py_dataset_adapter.PyDataset):
    """The parts that a worker makes of the batches of another `PyDataset`.

    Args:
        dataset: The other one.
        bounds: See `BatchParts.parts`.
        order: Numbers of its batches; `None` for all of them, without an end.
    """

    def __init__(self, dataset: Any, bounds: _Bounds, order: Sequence[int] | None):
        super().__init__(
            dataset.workers, dataset.use_multiprocessing, dataset.max_queue_size
        )
        self._dataset, self._bounds, self._order = dataset, bounds, order

    @property
    def num_batches(self) -> int | None:
        """Number of batches; `None` if they never end."""
        return None if self._order is None else len(self._order)

    def __iter__(self) -> Iterator[Any]:
        numbers = itertools.count() if self._order is None else range(len(self._order))
        return map(self.__getitem__, numbers)

    def __getitem__(self, number: int) -> tuple[int, int, list[Any]]:
        """Returns a batch's number in the dataset, its examples, and the parts."""
        index = number if self._order is None else self._order[number]
        examples = _examples(self._dataset, index)
        parts = [
            # A part without examples gets a filler.
            _part(self._dataset, index, start, max(stop, start + 1))
            for start, stop in self._bounds(examples)
        ]
        return index, examples, parts


def _examples(dataset: Any, index: int) -> int:
    """Returns the number of examples in a batch.

    Raises:
        ShardingError: It is no positive integer.
    """
    examples = getattr(dataset, _EXAMPLES)(index)
    if isinstance(examples, int | np.integer) and examples > 0:
        return int(examples)
    raise ShardingError(
        f"`{type(dataset).__name__}.{_EXAMPLES}(index)` must return the number of "
        f"examples in a batch, an integer >= 1. Received: {examples!r} for batch "
        f"{index}. Count the examples that `__getitem__({index})` returns."
    )


def _part(dataset: Any, index: int, start: int, stop: int) -> Any:
    """Returns some examples of a batch.

    Raises:
        ShardingError: There are not as many.
    """
    part = getattr(dataset, _PART)(index, start, stop)
    for leaf in tf.nest.flatten(part):
        if leaf is None:
            continue
        shape = tuple(getattr(leaf, "shape", np.shape(leaf)))
        rows = shape[0] if shape else "a scalar"
        if rows != stop - start:
            raise ShardingError(
                f"`{type(dataset).__name__}.{_PART}(index, start, stop)` must return "
                f"`stop - start` examples in every array. Received: {rows} from "
                f"`{_PART}({index}, {start}, {stop})`. Return those that "
                f"`__getitem__({index})` has from `start` to before `stop`."
            )
    return part
