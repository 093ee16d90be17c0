"""The functions of `Dataset.map`, as TensorFlow has traced them."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.util import structure
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


class MapFunction:
    """The function of a dataset of kind `"map"`, as it was traced.

    It is not traced again: variables that it closes over may have changed.

    Attributes:
        name: The method of the dataset and the Python function's name.
        parallel_calls: The argument `num_parallel_calls`.
    """

    def __init__(self, dataset: tf.data.Dataset):
        wrapper = dataset._map_func
        function = wrapper._func
        name = getattr(function, "__name__", type(function).__name__)
        self.name = f"map({name.strip('<>')})"
        self.parallel_calls = parallel_calls(dataset)
        self._traced = wrapper.function
        self._input, self._output = wrapper._input_structure, wrapper.output_structure

    def why_whole(self) -> str:
        """Returns why it must see all elements on every worker; `""` if not.

        Random operations are no reason, unless they have a seed: then a worker that
        draws for its share alone would draw the numbers of other examples.
        """
        operations = sorted({node.op for node in self._nodes() if _needs_order(node)})
        if not operations:
            return ""
        return f"{', '.join(operations)} in {self.name} may depend on their order"

    def call(self, element: Any) -> Any:
        """Returns the function's result for an element, in a graph."""
        results = self._traced(*structure.to_tensor_list(self._input, element))
        return structure.from_compatible_tensor_list(self._output, results)

    def _nodes(self) -> Iterator[Any]:
        graph = self._traced.graph.as_graph_def()
        yield from graph.node
        for function in graph.library.function:
            yield from function.node_def


def _needs_order(node: Any) -> bool:
    operation = op_def_registry.get(node.op)
    if operation is None or not operation.is_stateful or node.op in _ORDERLESS:
        return False
    if "seed" in node.attr and "seed2" in node.attr:
        return bool(node.attr["seed"].i or node.attr["seed2"].i)
    return True
