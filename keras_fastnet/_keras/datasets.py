"""The stages of `tf.data` pipelines, which TensorFlow keeps in private attributes."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    batch_op,
    cache_op,
    dataset_ops,
    map_op,
    prefetch_op,
    repeat_op,
    shuffle_op,
    skip_op,
    take_op,
    zip_op,
)
from tensorflow.python.data.util import nest, structure
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
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
    dataset_ops._OptionsDataset: "options",
}

# Stateful in TensorFlow's sense, but the order of the elements does not matter to them.
_ORDERLESS = {
    "Assert",
    "Case",
    "If",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "Print",
    "PrintV2",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "StatefulPartitionedCall",
    "VarIsInitializedOp",
    "While",
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
    """The arguments of `Dataset.batch`.

    Attributes:
        size: `batch_size`.
        drop_remainder: `drop_remainder`.
        parallel_calls: `num_parallel_calls`.
    """

    size: int
    drop_remainder: bool
    parallel_calls: int | None


def batch_arguments(dataset: tf.data.Dataset) -> BatchArguments:
    """Returns the arguments with which a dataset was batched.

    Args:
        dataset: A dataset of kind `"batch"`, made outside of a `tf.function`.
    """
    return BatchArguments(
        int(dataset._batch_size),
        bool(dataset._drop_remainder),
        _parallel_calls(dataset),
    )


def _parallel_calls(dataset: tf.data.Dataset) -> int | None:
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
            `"cache"` or `"options"`.
        source: The dataset to read.
    """
    name = _KINDS[type(dataset)]
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


def function_name(function: Callable[..., Any]) -> str:
    """Returns a name for a function or another object that can be called.

    Args:
        function: The object.
    """
    name = getattr(function, "__name__", type(function).__name__)
    return name.strip("<>")


class MapFunction:
    """The function of a dataset of kind `"map"`, as it was traced.

    It is not traced again: variables that it closes over may have changed.

    Args:
        dataset: The dataset.

    Attributes:
        python: The Python function.
        parallel_calls: The argument `num_parallel_calls`.
    """

    def __init__(self, dataset: tf.data.Dataset):
        wrapper = dataset._map_func
        self.python = wrapper._func
        self.parallel_calls = _parallel_calls(dataset)
        self._traced = wrapper.function
        self._input, self._output = wrapper._input_structure, wrapper.output_structure

    def order_dependent(self) -> list[str]:
        """Returns its operations whose results may depend on the elements' order.

        Random operations are not among them: `call` gives them other seeds.
        """
        return sorted({node.op for node in self._nodes() if _needs_order(node)})

    @property
    def name(self) -> str:
        """The Python function's name."""
        return function_name(self.python)

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers."""
        return any(map(_is_random, self._nodes()))

    def call(self, element: Any, seed_offset: int) -> Any:
        """Returns the function's result, in a graph.

        Args:
            element: The element.
            seed_offset: Added to the seeds of its random operations that have some.
        """
        arguments = structure.to_tensor_list(self._input, element)
        if not any(map(_has_seed, self._nodes())):
            seed_offset = 0
        results = _inlined(self._traced, arguments, seed_offset)
        return structure.from_compatible_tensor_list(self._output, results)

    def _nodes(self) -> Iterator[Any]:
        graph = self._traced.graph.as_graph_def()
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def


def _needs_order(node: Any) -> bool:
    operation = op_def_registry.get(node.op)
    return (
        operation is not None
        and operation.is_stateful
        and node.op not in _ORDERLESS
        and not _is_random(node)
    )


def _is_random(node: Any) -> bool:
    return "seed" in node.attr and "seed2" in node.attr


def _has_seed(node: Any) -> bool:
    return _is_random(node) and (node.attr["seed"].i or node.attr["seed2"].i)


def _inlined(function: Any, arguments: list[Any], seed_offset: int) -> list[Any]:
    """Returns a traced function's results, from a copy of its operations in a graph.

    A call of the function would cost `tf.data` some microseconds for each element.
    """
    graph = tf.compat.v1.get_default_graph()
    definition = function.graph.as_graph_def()
    if seed_offset:
        _reseed(definition, seed_offset)
    captured = [graph.capture(value) for value in function.captured_inputs]
    return tf.graph_util.import_graph_def(
        definition,
        dict(
            zip(
                [tensor.name for tensor in function.inputs],
                [*arguments, *captured],
                strict=True,
            )
        ),
        [tensor.name for tensor in function.outputs],
    )


def _reseed(definition: Any, offset: int) -> None:
    """Changes the seeds in a graph's definition, and in functions that it calls."""
    names = {called.signature.name for called in definition.library.function}
    for called in definition.library.function:
        called.signature.name += _suffix(offset)
        for node in called.node_def:
            _reseed_node(node, names, offset)
        # An import makes it known to the graph alone, not to the datasets' iterators.
        if not context.context().has_function(called.signature.name):
            context.context().add_function_def(called)
    for node in definition.node:
        _reseed_node(node, names, offset)


def _reseed_node(node: Any, functions: set[str], offset: int) -> None:
    """Changes a node's seed, and the names of functions that it calls."""
    if _has_seed(node):
        node.attr["seed2"].i += offset
    if node.op in functions:
        node.op += _suffix(offset)
    for value in node.attr.values():
        for called in (value.func, *value.list.func):
            if called.name in functions:
                called.name += _suffix(offset)


def _suffix(offset: int) -> str:
    return f"_seed_{offset}"
