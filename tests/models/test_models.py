"""The models, and residual blocks that start as the identity."""

import numpy as np
import pytest

import keras_fastnet as fastnet
from keras_fastnet._keras.keras_api import keras


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (lambda: fastnet.models.cifar_resnet(8), 3),
        (
            lambda: keras.applications.ResNet50(
                weights=None, input_shape=(32, 32, 3), classes=2
            ),
            16,
        ),
    ],
)
def test_zero_gamma_makes_blocks_the_identity(model, blocks):
    model = model()
    changed = fastnet.models.zero_gamma(model)
    assert len(changed) == blocks
    for name in changed:
        assert not model.get_layer(name).gamma.numpy().any()
    others = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.name not in changed
    ]
    assert others and all(layer.gamma.numpy().all() for layer in others)
    # The residual branches are zero, so the output of each `Add` is its other input.
    adds = [layer for layer in model.layers if isinstance(layer, keras.layers.Add)]
    inputs = [tensor for add in adds for tensor in add.input]
    outputs = [add.output for add in adds]
    probe = keras.Model(model.input, [*inputs, *outputs])
    values = probe(np.random.default_rng(0).normal(size=(2, 32, 32, 3)))
    pairs, sums = values[: 2 * blocks], values[2 * blocks :]
    for first, second, total in zip(pairs[::2], pairs[1::2], sums, strict=True):
        silent = [not np.asarray(branch).any() for branch in (first, second)]
        assert sum(silent) == 1
        kept = second if silent[0] else first
        np.testing.assert_array_equal(kept, total)


def test_zero_gamma_without_residual_blocks_raises():
    with pytest.raises(ValueError, match="Leave it out for this model"):
        fastnet.models.zero_gamma(keras.Sequential([keras.layers.Dense(2)]))


def test_invalid_depth_raises():
    with pytest.raises(ValueError, match="Received: depth=9"):
        fastnet.models.cifar_resnet(9)


def test_cifar_resnet_has_depth_layers():
    """He et al., section 4.2, without the shortcuts' convolutions."""
    model = fastnet.models.cifar_resnet(20)
    weighted = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.Dense)
        or (isinstance(layer, keras.layers.Conv2D) and layer.kernel_size == (3, 3))
    ]
    assert len(weighted) == 20
