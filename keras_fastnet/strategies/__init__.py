"""Distribution strategies."""

from keras_fastnet.strategies.torus_strategy import TorusStrategy
from keras_fastnet.strategies.tpu_strategy import TPUStrategy

__all__ = ["TPUStrategy", "TorusStrategy"]
