"""Makes a program that TensorFlow passes to XLA one that JAX's clients compile."""

import re

from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir


def module_of(program: bytes) -> ir.Module:
    """Returns a program as a module, in a context of MLIR.

    Args:
        program: A serialized `HloModuleProto`.
    """
    module = _jax.mlir.xla_computation_to_mlir_module(
        xla_client.XlaComputation(program)
    )
    # TensorFlow's copies of what it returns, in a dialect that JAX does not take.
    text = re.sub(
        r"mhlo\.copy (%\w+) : (tensor<[^>]*>)",
        r"stablehlo.reshape \1 : (\2) -> \2",
        re.sub(
            r'"mhlo\.copy"\((%\w+)\) : \((tensor<[^>]*>)\) -> tensor<[^>]*>',
            r"mhlo.copy \1 : \2",
            str(ir.Module.parse(module)),
        ),
    )
    return ir.Module.parse(text)
