"""What XLA compiles of the steps of several replicas: with Keras 2, nothing."""

import contextlib
from collections.abc import Iterator

from keras_fastnet._keras.keras_api import keras


@contextlib.contextmanager
def compiled_forward(model: keras.Model) -> Iterator[None]:
    """Refuses to compile a model's forward pass.

    Args:
        model: The model.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "XLA cannot compile a step that communicates with other replicas; with Keras 3 "
        f"its parts are compiled. Received: `jit_compile=True` with {keras.__name__} "
        f"{keras.__version__} and several replicas. Leave `jit_compile` out."
    )
    yield
