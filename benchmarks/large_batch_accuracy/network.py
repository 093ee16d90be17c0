"""A small convolutional network for CIFAR-10, fast on one core.

The ideas are those of public CIFAR-10 speedruns: few and wide layers (Page 2019, "How
to train your ResNet"); a fixed first convolution that whitens patches, convolutions
that begin as identities, normalization without gamma, logits averaged over an image and
its mirror image (Jordan 2024, arXiv 2404.00498, section 3). Here the first convolution
also halves the resolution, without which the first stage would take most of the time.
"""

import keras
import numpy as np
from keras import layers

PATCH = 4  # pixels of a side
COMPONENTS = 16  # of the 48 principal components of a patch
# The filters of the convolutions after it, with pooling between the stages.
STAGES = ((32,), (64, 64), (128, 128))


def speedrun_network(images: np.ndarray) -> keras.Model:
    """Returns a network from normalized images to 10 logits.

    Args:
        images: Training images, whose patches the first convolution whitens.
    """
    inputs = keras.Input(images.shape[1:])
    kernel = whitening_kernel(images)
    first = layers.Conv2D(
        *(kernel.shape[-1], PATCH, 2, "same"), use_bias=False, name="whitening"
    )
    x = layers.ReLU()(first(inputs))
    first.set_weights([kernel])
    first.trainable = False
    for stage, widths in enumerate(STAGES):
        if stage:
            x = layers.MaxPooling2D()(x)
        for width in widths:
            x = convolution(x, width)
    x = layers.GlobalMaxPooling2D()(x)
    # Logits, and so the loss, in float32.
    x = layers.Dense(10, use_bias=False, dtype="float32", name="head")(x)
    # So that the first losses are near those of equal probabilities.
    x = layers.Rescaling(1 / 8, dtype="float32", name="logits")(x)
    return AveragedOverMirrorImages(keras.Model(inputs, x, name="speedrun"))


class AveragedOverMirrorImages(keras.Model):
    """A network whose evaluation averages over an image and its mirror image."""

    def __init__(self, network: keras.Model) -> None:
        super().__init__()
        self.network = network

    def call(self, images, training=False):
        outputs = self.network(images, training=training)
        if training:
            return outputs
        mirrored = self.network(images[:, :, ::-1], training=False)
        return (outputs + mirrored) / 2


def whitening_kernel(images: np.ndarray) -> np.ndarray:
    """Returns a kernel whose outputs are uncorrelated and of unit variance.

    Each principal component of the patches comes with both signs, as the activation
    that follows keeps positive outputs only.
    """
    views = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), (1, 2))
    patches = views[:, ::2, ::2].transpose(0, 1, 2, 4, 5, 3)
    patches = patches.reshape(-1, PATCH * PATCH * images.shape[-1])
    variances, components = np.linalg.eigh(patches.T @ patches / len(patches))
    # The largest come last.
    largest = slice(-COMPONENTS, None)
    kernel = components[:, largest] / np.sqrt(variances[largest] + 5e-4)
    kernel = kernel.reshape(PATCH, PATCH, -1, COMPONENTS)
    return np.concatenate([kernel, -kernel], axis=-1)


class Identity(keras.initializers.Initializer):
    """Has the first filters pass one channel each; He's initialization of others."""

    def __call__(self, shape, dtype=None):
        kernel = np.array(keras.initializers.HeNormal()(shape))
        rows, columns, channels, filters = shape
        passing = min(channels, filters)
        kernel[..., :passing] = 0
        kernel[rows // 2, columns // 2, range(passing), range(passing)] = 1
        return keras.ops.convert_to_tensor(kernel, dtype)


def convolution(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    """Adds a convolution, its normalization and activation."""
    x = layers.Conv2D(
        *(width, 3, 1, "same"), use_bias=False, kernel_initializer=Identity()
    )(x)
    x = layers.BatchNormalization(momentum=0.9, scale=False)(x)
    return layers.ReLU()(x)
