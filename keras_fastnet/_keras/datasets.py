"""The stages of `tf.data` pipelines, which TensorFlow keeps in private attributes."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    batch_op,
    cache_op,
    concatenate_op,
    dataset_ops,
    map_op,
    padded_batch_op,
    prefetch_op,
    ragged_batch_op,
    repeat_op,
    shuffle_op,
    skip_op,
    take_op,
    zip_op,
)
from tensorflow.python.data.util import nest, structure
from tensorflow.python.ops import gen_dataset_ops

_KINDS: dict[type, str] = {
    map_op._MapDataset: "map",
    map_op._ParallelMapDataset: "map",
    batch_op._BatchDataset: "batch",
    batch_op._ParallelBatchDataset: "batch",
    prefetch_op._PrefetchDataset: "prefetch",
    shuffle_op._ShuffleDataset: "shuffle",
    repeat_op._RepeatDataset: "repeat",
    take_op._TakeDataset: "take",
    skip_op._SkipDataset: "skip",
    cache_op.CacheDataset: "cache",
    zip_op._ZipDataset: "zip",
    concatenate_op._ConcatenateDataset: "concatenate",
    padded_batch_op._PaddedBatchDataset: "padded_batch",
    # A stage of its own before the `batch` of `ragged_batch`.
    ragged_batch_op._DenseToRaggedDataset: "ragged",
    dataset_ops._OptionsDataset: "options",
}


def kind(dataset: tf.data.Dataset) -> str | None:
    """Returns which method of `tf.data.Dataset` made a dataset.

    Args:
        dataset: The dataset.

    Returns:
        The method's name; `None` if it is none of those that this module knows.
    """
    return _KINDS.get(type(dataset))


def class_name(dataset: tf.data.Dataset) -> str:
    """Returns a name for a dataset of any kind, such as `"TensorSlice"`.

    Args:
        dataset: The dataset.
    """
    name = type(dataset).__name__.strip("_").removesuffix("V2")
    return name.removesuffix("Dataset") or name


def inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets that a dataset reads.

    Args:
        dataset: The dataset.
    """
    return list(dataset._inputs())


@dataclasses.dataclass(frozen=True)
class BatchArguments:
    """The arguments of `Dataset.batch` or `padded_batch`.

    Attributes:
        size: `batch_size`.
        drop_remainder: `drop_remainder`.
        parallel_calls: `num_parallel_calls`.
        padding: `padded_shapes` and `padding_values`; `None` for `batch`.
    """

    size: int
    drop_remainder: bool
    parallel_calls: int | None
    padding: tuple[Any, Any] | None

    def batched(self, pairs: tf.data.Dataset, size: int) -> tf.data.Dataset:
        """Returns batches of pairs of an element and a vector, in order.

        Args:
            pairs: The pairs.
            size: The batches' size.
        """
        if self.padding is not None:
            shapes, paddings = self.padding
            vector = pairs.element_spec[1]
            zero = tf.zeros([], vector.dtype)
            return pairs.padded_batch(
                size, (shapes, vector.shape), (paddings, zero), self.drop_remainder
            )
        deterministic = None if self.parallel_calls is None else True
        return pairs.batch(
            size, self.drop_remainder, self.parallel_calls, deterministic
        )


def batch_arguments(dataset: tf.data.Dataset) -> BatchArguments:
    """Returns the arguments with which a dataset was batched.

    Args:
        dataset: A dataset of kind `"batch"` or `"padded_batch"`, made outside of a
            `tf.function`.
    """
    padding = None
    if kind(dataset) == "padded_batch":
        padding = dataset._padded_shapes, dataset._padding_values
    return BatchArguments(
        int(dataset._batch_size),
        bool(dataset._drop_remainder),
        parallel_calls(dataset),
        padding,
    )


def pads_to_longest(dataset: tf.data.Dataset) -> bool:
    """Returns whether the size of an element may depend on others in its batch.

    Args:
        dataset: A dataset of kind `"padded_batch"`.
    """
    shapes = nest.flatten(dataset._padded_shapes)
    specs = nest.flatten(dataset._input_dataset.element_spec)
    return any(
        size < 0 and own is None
        for shape, spec in zip(shapes, specs, strict=True)
        for size, own in zip(
            shape.numpy(), spec.shape.as_list() if spec.shape.rank else (), strict=False
        )
    ) or any(spec.shape.rank is None for spec in specs)


def parallel_calls(dataset: tf.data.Dataset) -> int | None:
    """Returns the argument `num_parallel_calls` with which a dataset was made.

    Args:
        dataset: A dataset of kind `"map"`, `"batch"` or `"padded_batch"`.
    """
    calls = getattr(dataset, "_num_parallel_calls", None)
    return None if calls is None else int(calls)


def in_memory(dataset: tf.data.Dataset) -> bool:
    """Returns whether a dataset of kind `"cache"` keeps its elements in memory.

    Args:
        dataset: The dataset.
    """
    return not dataset._filename.numpy()


def zipped(
    dataset: tf.data.Dataset, datasets: list[tf.data.Dataset]
) -> tf.data.Dataset:
    """Returns other datasets zipped in the structure of a dataset of kind `"zip"`.

    Args:
        dataset: The dataset.
        datasets: As many as it reads.
    """
    return tf.data.Dataset.zip(nest.pack_sequence_as(dataset._datasets, datasets))


def with_component(
    dataset: tf.data.Dataset,
    element: Any,
    number: int,
    change: Callable[[Any], Any],
) -> Any:
    """Returns an element of a dataset of kind `"zip"` with one component changed.

    Args:
        dataset: The dataset.
        element: The element.
        number: Which of the datasets that it reads.
        change: Returns the changed component.
    """
    parts = nest.flatten_up_to(dataset._datasets, element)
    parts[number] = change(parts[number])
    return nest.pack_sequence_as(dataset._datasets, parts)


def components(element: Any) -> list[Any]:
    """Returns the components of an element, of its specification, or of a window.

    Args:
        element: The structure, as `tf.data` sees it: its lists are tensors.
    """
    return nest.flatten(element)


def again(dataset: tf.data.Dataset, source: tf.data.Dataset) -> tf.data.Dataset:
    """Returns another dataset with a stage that does not look into elements.

    Args:
        dataset: Of kind `"prefetch"`, `"shuffle"`, `"repeat"`, `"take"`, `"skip"`,
            `"cache"`, `"ragged"` or `"options"`.
        source: The dataset to read.
    """
    name = _KINDS[type(dataset)]
    if name == "ragged":
        return ragged_batch_op._DenseToRaggedDataset(source, _row_splits(dataset))
    if name == "shuffle":
        return _SameShuffle(dataset, source)
    if name == "prefetch":
        return source.prefetch(int(dataset._buffer_size))
    if name == "cache":
        return source.cache()
    if name == "options":
        return source
    stages = {"repeat": source.repeat, "take": source.take, "skip": source.skip}
    return stages[name](dataset._count)


def _row_splits(dataset: tf.data.Dataset) -> tf.DType:
    """Returns the dtype of the rows' ends in what a dataset makes ragged."""
    made = nest.flatten(dataset.element_spec)
    given = nest.flatten(dataset._input_dataset.element_spec)
    for spec, before in zip(made, given, strict=True):
        if isinstance(spec, tf.RaggedTensorSpec) and isinstance(before, tf.TensorSpec):
            return spec.row_splits_dtype
    return tf.int64


def switched(
    dataset: tf.data.Dataset, number: tf.Tensor, branches: Sequence[Callable[[], Any]]
) -> Any:
    """Returns an element of a dataset of kind `"concatenate"`, in a graph.

    Args:
        dataset: The dataset.
        number: Which of the datasets that it reads has the element.
        branches: For each of them, returns the element.
    """
    spec = dataset.element_spec

    def tensors(branch: Callable[[], Any]) -> list[tf.Tensor]:
        return structure.to_tensor_list(spec, branch())

    flat = tf.switch_case(number, [functools.partial(tensors, b) for b in branches])
    flat = flat if isinstance(flat, list | tuple) else [flat]
    return structure.from_compatible_tensor_list(spec, list(flat))


class _SameShuffle(shuffle_op._ShuffleDataset):
    """Shuffles as another dataset does: by the same seeds, from the start.

    Args:
        dataset: The other dataset.
        source: What to shuffle.
    """

    def __init__(self, dataset: Any, source: tf.data.Dataset):
        self._input_dataset = source
        self._buffer_size = dataset._buffer_size
        self._seed, self._seed2 = dataset._seed, dataset._seed2
        self._reshuffle_each_iteration = dataset._reshuffle_each_iteration
        self._name = None
        variant = gen_dataset_ops.shuffle_dataset_v3(
            source._variant_tensor,
            buffer_size=self._buffer_size,
            seed=self._seed,
            seed2=self._seed2,
            seed_generator=gen_dataset_ops.dummy_seed_generator(),
            reshuffle_each_iteration=self._reshuffle_each_iteration,
            **self._common_args,
        )
        dataset_ops.UnaryUnchangedStructureDataset.__init__(self, source, variant)
