"""Makes the program of one TPU core a function that XLA compiles."""

from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tests.distributed.tpu_of_cpus import Traced, source_of


def compiled_step(traced: Traced) -> tuple[Any, list[tf.Tensor]]:
    """Returns the program of one core, as a function for XLA, and its arguments.

    Sums over the cores are XLA's. The arguments are the data of a step, all zero.

    Args:
        traced: The cores' program.
    """
    program = graph_pb2.GraphDef(versions=traced.graph_def.versions)
    program.node.extend(
        _for_xla(traced.copy_of(node, 0)) for node in traced.own.values()
    )
    for function in traced.graph_def.library.function:
        copy = program.library.function.add()
        copy.CopyFrom(function)
        copy.signature.name += "_core0"
        for node in copy.node_def:
            traced.set_attributes(node, 0)
            _for_xla(node)
    known = {node.name for node in program.node}
    needed = {source_of(x) for node in program.node for x in node.input} - known
    captures = [(x, p) for x, p in traced.graph.captures if source_of(p.name) in needed]
    needed -= {source_of(p.name) for _, p in captures}
    program.node.extend(n for n in traced.graph_def.node if n.name in needed)
    effects = [x for x in traced.effects() if x.startswith(traced.prefix(0))]

    def run(*captured: Any) -> list[Any]:
        names = [placeholder.name for _, placeholder in captures]
        found = tf.graph_util.import_graph_def(
            program,
            input_map=dict(zip(names, captured, strict=True)),
            return_elements=effects,
            name="",
        )
        tf.compat.v1.get_default_graph().control_outputs += found
        return []

    specs = [tf.TensorSpec(x.shape, x.dtype) for x, _ in captures]
    function = tf.compat.v1.wrap_function(run, specs)
    origins = [_origin(traced, x) for x, _ in captures]

    @tf.function(jit_compile=True)
    def step(*data: tf.Tensor) -> None:
        given = iter(data)
        function(*(x if x.dtype == tf.resource else next(given) for x in origins))

    return step, [tf.zeros(x.shape, x.dtype) for x in origins if x.dtype != tf.resource]


def _origin(traced: Traced, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the captured tensor from the outermost graph."""
    graph = traced.graph.outer_graph
    while hasattr(graph, "captures"):
        captured = {id(inner): outer for outer, inner in graph.captures}
        tensor = captured.get(id(tensor), tensor)
        graph = graph.outer_graph
    return tensor


def _for_xla(node: node_def_pb2.NodeDef) -> node_def_pb2.NodeDef:
    """Changes a node of a core's program to what XLA compiles, and returns it."""
    node.device = ""
    for name in ("_lower_using_switch_merge", "_output_shapes"):
        node.attr.pop(name, None)
    if node.op == "CrossReplicaSum":
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"
    return node
