"""Two small convolutional networks for CIFAR-10, fast on one core.

The ideas are those of public CIFAR-10 speedruns: few and wide layers (Page 2019, "How
to train your ResNet"); a fixed first convolution that whitens patches, convolutions
that begin as identities, normalization without gamma, logits averaged over an image and
its mirror image (Jordan 2024, arXiv 2404.00498, section 3).
"""

import keras
import numpy as np
from keras import layers

COMPONENTS = 16  # at most, of the principal components of a patch


def speedrun_network(images: np.ndarray, size: str) -> keras.Model:
    """Returns a network from normalized images to 10 logits.

    Args:
        images: Training images, whose patches the first convolution whitens.
        size: `"small"` or `"large"`.
    """
    inputs = keras.Input(images.shape[1:])
    x = {"small": small, "large": large}[size](inputs, images)
    x = layers.GlobalMaxPooling2D()(x)
    # Logits, and so the loss, in float32.
    x = layers.Dense(10, use_bias=False, dtype="float32", name="head")(x)
    # So that the first losses are near those of equal probabilities.
    x = layers.Rescaling(1 / 8, dtype="float32", name="logits")(x)
    return AveragedOverMirrorImages(keras.Model(inputs, x, name="speedrun"))


def small(x: keras.KerasTensor, images: np.ndarray) -> keras.KerasTensor:
    """Adds 290,000 weights, 10 million multiplications for an image.

    The first convolution also halves the resolution, without which the first stage
    would take most of the time.
    """
    x = whitened(x, images, patch=4, stride=2, activation="relu")
    for stage, widths in enumerate(((32,), (64, 64), (128, 128))):
        if stage:
            x = layers.MaxPooling2D()(x)
        for width in widths:
            x = normalized(convolution(x, width), "relu")
    return x


def large(x: keras.KerasTensor, images: np.ndarray) -> keras.KerasTensor:
    """Adds 500,000 weights, 33 million multiplications for an image.

    The network of Jordan 2024, section 3.1, with half of its filters, and SiLU in place
    of GELU, which takes longer.
    """
    x = whitened(x, images, patch=2, stride=1, activation="silu")
    for width in (32, 128, 128):
        x = layers.MaxPooling2D()(convolution(x, width))
        x = normalized(x, "silu")
        x = normalized(convolution(x, width), "silu")
    return x


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


def whitened(
    x: keras.KerasTensor, images: np.ndarray, patch: int, stride: int, activation: str
) -> keras.KerasTensor:
    """Adds the fixed first convolution, and an activation."""
    kernel = whitening_kernel(images, patch)
    padding = "valid" if stride == 1 else "same"
    first = layers.Conv2D(
        *(kernel.shape[-1], patch, stride, padding), use_bias=False, name="whitening"
    )
    x = layers.Activation(activation)(first(x))
    first.set_weights([kernel])
    first.trainable = False
    return x


def whitening_kernel(images: np.ndarray, patch: int) -> np.ndarray:
    """Returns a kernel whose outputs are uncorrelated and of unit variance.

    Each principal component of the patches comes with both signs, as the activation
    that follows keeps mostly positive outputs.

    Args:
        images: Those whose patches are whitened.
        patch: Pixels of a patch's side.
    """
    views = np.lib.stride_tricks.sliding_window_view(images, (patch, patch), (1, 2))
    patches = views[:, ::2, ::2].transpose(0, 1, 2, 4, 5, 3)
    patches = patches.reshape(-1, patch * patch * images.shape[-1])
    variances, components = np.linalg.eigh(patches.T @ patches / len(patches))
    # The largest come last.
    largest = slice(-COMPONENTS, None)
    kernel = components[:, largest] / np.sqrt(variances[largest] + 5e-4)
    kernel = kernel.reshape(patch, patch, images.shape[-1], -1)
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
    """Adds a convolution that begins as an identity."""
    return layers.Conv2D(
        *(width, 3, 1, "same"), use_bias=False, kernel_initializer=Identity()
    )(x)


def normalized(x: keras.KerasTensor, activation: str) -> keras.KerasTensor:
    """Adds batch normalization and an activation."""
    x = layers.BatchNormalization(momentum=0.9, scale=False)(x)
    return layers.Activation(activation)(x)
