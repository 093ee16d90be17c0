"""The arguments of a strategy that concern its all-reduce."""

import dataclasses
from typing import Any

import tensorflow as tf

_WIRE_DTYPES = (tf.bfloat16, tf.float16)

_TRANSPORTS = ("auto", "mpi", "tensorflow")


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
    grid: object,
    wire_dtype: object,
    bucket_bytes: object,
    transport: object,
    communication_options: Any,
) -> ReductionOptions:
    """Checks the arguments of a strategy that concern its all-reduce.

    Args:
        grid: See `TorusStrategy`.
        wire_dtype: See `TorusStrategy`.
        bucket_bytes: See `TorusStrategy`.
        transport: See `TorusStrategy`.
        communication_options: TensorFlow's options, which may also have a size.

    Raises:
        ValueError: If one of them is wrong.
    """
    if isinstance(grid, str) and grid not in ("auto", "ring"):
        raise ValueError(
            '`grid` must be "auto", "ring" or `(rows, columns)`. '
            f'Received: {grid!r}. Leave it out for "auto".'
        )
    travels_as = _checked_wire_dtype(wire_dtype)
    if not isinstance(transport, str) or transport not in _TRANSPORTS:
        raise ValueError(
            '`transport` must be "auto", "mpi" or "tensorflow". '
            f'Received: {transport!r}. Leave it out for "auto".'
        )
    if bucket_bytes is not None and (
        not isinstance(bucket_bytes, int)
        or isinstance(bucket_bytes, bool)
        or bucket_bytes < 1
    ):
        raise ValueError(
            "`bucket_bytes` must be a positive integer. "
            f"Received: {bucket_bytes!r}. Leave it out for the default."
        )
    if communication_options is not None and not hasattr(
        communication_options, "bytes_per_pack"
    ):
        raise ValueError(
            "`communication_options` must be a "
            "`tf.distribute.experimental.CommunicationOptions`. Received: "
            f"{communication_options!r}. Leave it out for TensorFlow's."
        )
    if communication_options is not None and communication_options.bytes_per_pack:
        raise ValueError(
            "The size of a bucket is given by `bucket_bytes`. Received: "
            "`communication_options` with `bytes_per_pack="
            f"{communication_options.bytes_per_pack}`. Move it to `bucket_bytes`."
        )
    return ReductionOptions(grid, travels_as, bucket_bytes, transport)


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
