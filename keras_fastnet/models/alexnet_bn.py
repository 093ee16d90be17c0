"""AlexNet with batch normalization, the model of the LARS paper."""

from keras_fastnet._keras.keras_api import keras

layers = keras.layers


def alexnet_bn(
    input_shape: tuple[int, int, int] = (227, 227, 3),
    *,
    classes: int = 1000,
    dropout: float = 0.5,
    batch_norm_momentum: float = 0.9,
) -> keras.Model:
    """Returns AlexNet with batch normalization (You et al., arXiv 1708.03888).

    The five convolutions and three dense layers of Krizhevsky et al. 2012, in one
    column instead of two (arXiv 1404.5997), with `BatchNormalization` after each
    convolution and each hidden dense layer instead of response normalization.

    Args:
        input_shape: Height, width and channels, at least 67 x 67. Defaults to
            `(227, 227, 3)`.
        classes: Number of logits. Defaults to 1000.
        dropout: Dropout rate of the hidden dense layers. Defaults to 0.5 (Krizhevsky et
            al.).
        batch_norm_momentum: Momentum of the moving statistics. Defaults to 0.9.

    Returns:
        A model from images `(batch, *input_shape)` to logits `(batch, classes)`.

    Raises:
        ValueError: If the images are smaller than 67 x 67.

    Example:

    >>> model = alexnet_bn()
    >>> [layer.output.shape[1:3] for layer in model.layers if "pool" in layer.name]
    [(27, 27), (13, 13), (6, 6)]
    """
    if min(input_shape[:2]) < 67:
        raise ValueError(
            "AlexNet needs images of at least 67 x 67, which its layers reduce to one "
            f"pixel. Received: input_shape={input_shape}. Use larger images, or "
            "another model."
        )

    def normalized(x):
        x = layers.BatchNormalization(momentum=batch_norm_momentum)(x)
        return layers.ReLU()(x)

    inputs = x = keras.Input(input_shape)
    for index, (filters, kernel, strides, padding, pool) in enumerate(
        (
            (96, 11, 4, "valid", True),
            (256, 5, 1, "same", True),
            (384, 3, 1, "same", False),
            (384, 3, 1, "same", False),
            (256, 3, 1, "same", True),
        ),
        start=1,
    ):
        x = layers.Conv2D(
            *(filters, kernel, strides, padding),
            use_bias=False,
            kernel_initializer="he_normal",
            name=f"conv{index}",
        )(x)
        x = normalized(x)
        if pool:
            x = layers.MaxPooling2D(3, 2, name=f"pool{index}")(x)
    x = layers.Flatten()(x)
    for index in (6, 7):
        x = layers.Dense(
            4096, use_bias=False, kernel_initializer="he_normal", name=f"fc{index}"
        )(x)
        x = layers.Dropout(dropout)(normalized(x))
    # Logits, and so the loss, in float32 under any dtype policy.
    x = layers.Dense(classes, dtype="float32", name="logits")(x)
    return keras.Model(inputs, x, name="alexnet_bn")
