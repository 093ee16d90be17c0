"""The arguments of a strategy that concern its all-reduce."""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_fastnet.arguments import checked_choice, checked_integer

_WIRE_DTYPES = (tf.bfloat16, tf.float16)

_TRANSPORTS = {
    "auto": "MPI on CPUs if it started the processes, otherwise TensorFlow",
    "mpi": "MPI",
    "tensorflow": "TensorFlow's collectives",
}


@dataclasses.dataclass(frozen=True)
class ReductionOptions:
    """The checked arguments of a strategy that concern its all-reduce.

    Attributes:
        grid: `"auto"`, `"ring"` or `(rows, columns)`; checked against the replicas
            when these are known.
        wire_dtype: Dtype that `float32` is rounded to for sending; `None` for no
            rounding.
        bucket_bytes: Size of a bucket; `None` for the default of the engine.
        transport: `"mpi"`, `"tensorflow"` or `"auto"`.
    """

    grid: object
    wire_dtype: tf.DType | None
    bucket_bytes: int | None
    transport: str


def check_options(
    grid: object, wire_dtype: object, bucket_bytes: object, transport: object
) -> ReductionOptions:
    """Checks the arguments of a strategy that concern its all-reduce.

    Args:
        grid: See `TorusStrategy`.
        wire_dtype: See `TorusStrategy`.
        bucket_bytes: See `TorusStrategy`.
        transport: See `TorusStrategy`.

    Raises:
        TypeError: If `bucket_bytes` is not an integer.
        ValueError: If one of them is wrong.
    """
    nbytes = None
    if bucket_bytes is not None:
        nbytes = checked_integer("bucket_bytes", bucket_bytes, at_least=1)
    carrier = checked_choice("transport", transport, _TRANSPORTS)
    return ReductionOptions(grid, _checked_wire_dtype(wire_dtype), nbytes, carrier)


def _checked_wire_dtype(value: Any) -> tf.DType | None:
    """Returns the dtype, given by its name or as one of TensorFlow's or NumPy's."""
    if value is None:
        return None
    try:
        dtype = tf.as_dtype(value)
    except TypeError:
        dtype = None
    if dtype not in _WIRE_DTYPES:
        raise ValueError(
            '`wire_dtype` must be `None`, "bfloat16" or "float16". '
            f"Received: {value!r}. Leave it out to send `float32`."
        )
    return dtype
