"""A model that Keras does not provide, and a helper for residual networks."""

from keras_fastnet.models.cifar_resnet import cifar_resnet
from keras_fastnet.models.zero_gamma import zero_gamma

__all__ = ["cifar_resnet", "zero_gamma"]
