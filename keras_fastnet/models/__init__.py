"""Models that Keras does not provide, and a helper for residual networks."""

from keras_fastnet.models.alexnet_bn import alexnet_bn
from keras_fastnet.models.cifar_resnet import cifar_resnet
from keras_fastnet.models.zero_gamma import zero_gamma

__all__ = ["alexnet_bn", "cifar_resnet", "zero_gamma"]
