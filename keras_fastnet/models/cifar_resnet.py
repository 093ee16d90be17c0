"""Residual networks for small images (He et al. 2015)."""

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.arguments import checked_integer

layers = keras.layers


def cifar_resnet(
    depth: int = 20,
    *,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    width: int = 16,
    first_strides: int = 1,
    batch_norm_momentum: float = 0.9,
) -> keras.Model:
    """Returns a residual network for 32x32 images (He et al., arXiv 1512.03385, 4.2).

    Three stages of `(depth - 2) / 6` blocks with two 3x3 convolutions each, of `width`,
    `2 width` and `4 width` filters; then global average pooling, and logits. Shortcuts
    between maps of different sizes are 1x1 convolutions (the paper's option B).

    Args:
        depth: Number of layers with weights, 6n + 2: 8, 14, 20, … Defaults to 20.
        input_shape: Height, width and channels. Defaults to `(32, 32, 3)`.
        classes: Number of logits. Defaults to 10.
        width: Filters of the first stage. Defaults to 16 (the paper).
        first_strides: Strides of the first convolution; 2 reduces the time to a
            quarter. Defaults to 1 (the paper).
        batch_norm_momentum: Momentum of the moving statistics. Defaults to 0.9, as
            Keras's 0.99 is too slow for trainings with few updates.

    Returns:
        A model from images `(batch, *input_shape)` to logits `(batch, classes)`.

    Raises:
        ValueError: If `depth` is not 6n + 2.

    Example:

    >>> cifar_resnet(8).count_params()
    78714
    """
    blocks, rest = divmod(checked_integer("depth", depth, at_least=8) - 2, 6)
    if rest:
        raise ValueError(
            f"`depth` must be 6n + 2. Received: depth={depth}. "
            f"Pass, for example, {6 * blocks + 2} or {6 * blocks + 8}."
        )

    def convolution(x, filters, kernel, strides=1):
        x = layers.Conv2D(
            *(filters, kernel, strides, "same"),
            use_bias=False,
            kernel_initializer="he_normal",
        )(x)
        return layers.BatchNormalization(momentum=batch_norm_momentum)(x)

    inputs = keras.Input(input_shape)
    x = layers.ReLU()(convolution(inputs, width, 3, first_strides))
    for stage in range(3):
        filters = width * 2**stage
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            y = layers.ReLU()(convolution(x, filters, 3, strides))
            y = convolution(y, filters, 3)
            if strides > 1:
                x = convolution(x, filters, 1, strides)
            x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    # Logits, and so the loss, in float32 under any dtype policy.
    x = layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, x, name=f"cifar_resnet{depth}")
