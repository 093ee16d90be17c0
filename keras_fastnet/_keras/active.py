"""Makes all changes to Keras and TensorFlow, when a strategy or optimizer needs them.

Keras has no public interface for most of what several workers and micro-batches need,
so functions of it are wrapped, once. Every wrapper asks whether a keras_fastnet
strategy or optimizer is active, and otherwise calls Keras's own code.
"""

# They register their changes when they are imported.
from keras_fastnet._keras import callbacks, chosen, losses  # noqa: F401
from keras_fastnet._keras import tensorflow as upstream  # noqa: F401
from keras_fastnet._keras.protocols import HookedStrategy
from keras_fastnet._keras.scopes import STRATEGIES
from keras_fastnet._keras.wrapping import install

__all__ = ["heed", "install"]


def heed(strategy: HookedStrategy) -> None:
    """Makes the changes, and has models be made in a strategy's scope.

    Args:
        strategy: A `tf.distribute.Strategy`.

    Raises:
        ImportError: This Keras lacks a function that must be wrapped.
    """
    STRATEGIES.add(strategy)
    install()
