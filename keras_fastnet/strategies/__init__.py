"""Distribution strategies."""

from keras_fastnet.strategies.automatic import strategy
from keras_fastnet.strategies.torus_strategy import TorusStrategy

__all__ = ["TorusStrategy", "strategy"]
