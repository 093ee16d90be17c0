"""The places where Keras has to learn about several workers and micro-batches.

Keras offers no public seam here, so some of its functions are wrapped, once, when the
first strategy of ours or `LargeBatchOptimizer` is made. Every wrapper asks whether one
of them is active and otherwise calls Keras's own code, so that nothing else changes.
keras#20585 is the thread whose end would let most of them go for Keras 3; Keras 2 has
ended, and so have its changes.
"""

# They register their wrappers when they are imported.
from keras_fastnet._keras import callbacks as callback_hooks  # noqa: F401
from keras_fastnet._keras.protocols import HookedStrategy
from keras_fastnet._keras.scopes import STRATEGIES
from keras_fastnet._keras.tensorflow import (
    let_counts_be_assigned,
    let_variables_convert,
)
from keras_fastnet._keras.wrapping import install

__all__ = ["heed", "install"]


def heed(strategy: HookedStrategy) -> None:
    """Makes Keras heed `strategy`.

    Args:
        strategy: A `tf.distribute.Strategy`.

    Raises:
        ImportError: This Keras lacks what must be wrapped.
    """
    STRATEGIES.add(strategy)
    let_variables_convert()
    let_counts_be_assigned()
    install()
