"""The functions of `Dataset.map`, as TensorFlow has traced them."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.util import structure
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from keras_fastnet._keras.datasets import parallel_calls

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
# Calls of Python, and what a person sees.
_SEEN = {"EagerPyFunc", "PyFunc", "PyFuncStateless", "Print", "PrintV2"}


def function_name(function: Callable[..., Any]) -> str:
    """Returns a name for a function or another object that can be called."""
    name = getattr(function, "__name__", type(function).__name__)
    return name.strip("<>")


class MapFunction:
    """The function of a dataset of kind `"map"`, as it was traced.

    It is not traced again: variables that it closes over may have changed.

    Attributes:
        python: The Python function.
        parallel_calls: The argument `num_parallel_calls`.
    """

    def __init__(self, dataset: tf.data.Dataset):
        wrapper = dataset._map_func
        self.python = wrapper._func
        self.parallel_calls = parallel_calls(dataset)
        self._traced = wrapper.function
        self._input, self._output = wrapper._input_structure, wrapper.output_structure

    def why_whole(self) -> str:
        """Returns why it must see all elements on every worker; `""` if not.

        Random operations are no reason: `call` gives them other seeds.
        """
        operations = sorted({node.op for node in self._nodes() if _needs_order(node)})
        if not operations:
            return ""
        return f"{', '.join(operations)} in {self.name} may depend on their order"

    @property
    def name(self) -> str:
        """The method of the dataset and the Python function's name."""
        return f"map({function_name(self.python)})"

    @property
    def is_repeatable(self) -> bool:
        """Whether nothing but time tells how often it ran for an element."""
        return not any(_is_random(n) or n.op in _SEEN for n in self._nodes())

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
