"""Optimizers for large batches."""

from keras_fastnet.optimizers.lars import LARS

__all__ = ["LARS"]
