"""LARS as a Keras optimizer: configuration, updates, clipping, dtypes, arguments."""

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS
from keras_fastnet._keras.keras_api import keras
from tests.variables import new_variable


def test_config_round_trip():
    optimizer = LARS(
        learning_rate=2.0,
        momentum=0.8,
        weight_decay=0.01,
        trust_coefficient=0.02,
        epsilon=0.5,
        nesterov=True,
        exclude_biases_and_norms=False,
        exclude_from_weight_decay=["a", "b"],
        exclude_from_adaptation=("c",),
        clipnorm=3.0,
        use_ema=True,
        ema_momentum=0.7,
        ema_overwrite_frequency=3,
        loss_scale_factor=8.0,
        gradient_accumulation_steps=4,
        name="mine",
    )
    config = optimizer.get_config()
    assert LARS.from_config(config).get_config() == config
    assert config["exclude_from_adaptation"] == ["c"]
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(copy) is LARS
    assert copy.get_config() == config
    config = LARS(epsilon=0.0, weight_decay=None).get_config()
    assert (config["epsilon"], config["weight_decay"]) == (0.0, 0.0)


def test_correctness_with_golden():
    optimizer = LARS(1.0, momentum=0.5, weight_decay=0.25, trust_coefficient=0.1)
    variable = new_variable([[1.0]], dtype="float64")
    seen = []
    for _ in range(4):
        optimizer.apply([tf.ones((1, 1), tf.float64)], [variable])
        seen.append(variable.numpy().item())
    # For one element with g and w of one sign, ratio * (g + beta w) is eta * w. So by
    # hand, v = 0.5 v + 0.1 w and w = w - v, from w = 1.
    np.testing.assert_allclose(seen, [0.9, 0.76, 0.614, 0.4796], rtol=1e-14)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float16_and_bfloat16_weights_compute_in_float32(dtype, momentum, nesterov):
    options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": 0.01}
    # The square of 1e-4 is below float16's smallest number, that of 300 above its
    # largest.
    start = np.full((4, 8), 300.0)
    gradient = np.full((4, 8), 1e-4)
    results = []
    for used in (dtype, "float64"):
        variable = new_variable(start, dtype=used)
        optimizer = LARS(40.0, **options)
        for _ in range(2):
            optimizer.apply([tf.cast(gradient, used)], [variable])
        assert variable.dtype == used
        results.append(np.asarray(tf.cast(variable.value, tf.float64)))
    narrow, wide = results
    assert abs(wide - start).min() > 10
    precision = {"float16": 2**-10, "bfloat16": 2**-7}[dtype]
    np.testing.assert_allclose(narrow, wide, rtol=3 * precision)


def test_variable_without_gradient_is_unchanged():
    first, second = (new_variable([[1.0]]) for _ in range(2))
    optimizer = LARS(1.0)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tf.ones((1, 1)), None], [first, second])
    assert first.numpy().item() < 1.0
    assert second.numpy().item() == 1.0


def test_buffers_have_keras_names():
    variable = new_variable([[1.0]], name="kernel")
    optimizer = LARS()
    optimizer.build([variable])
    assert [v.path for v in optimizer.variables] == [
        "lars/iteration",
        "lars/learning_rate",
        "lars/kernel_momentum",
    ]
    optimizer = LARS(momentum=0.0)
    optimizer.build([variable])
    assert len(optimizer.variables) == 2


def test_constraints_are_applied():
    layer = keras.layers.Dense(1, kernel_constraint="non_neg", use_bias=False)
    layer.build((None, 2))
    LARS(1e6).apply([tf.ones((2, 1))], layer.trainable_variables)
    assert layer.kernel.numpy().tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"momentum": 1.0}, ValueError, "`momentum` must be a number at least 0"),
        ({"momentum": "0.9"}, TypeError, "`momentum` must be a number"),
        ({"weight_decay": -1e-4}, ValueError, "`weight_decay` must be a number"),
        ({"trust_coefficient": 0.0}, ValueError, "a number above 0"),
        ({"epsilon": -1e-9}, ValueError, "`epsilon` must be a number at least 0"),
        ({"nesterov": 1}, TypeError, "`nesterov` must be a bool"),
        ({"learning_rate": "1"}, ValueError, "learning_rate"),
        ({"learning_rate": -1.0}, ValueError, "`learning_rate` must be a number at"),
        ({"clipnorm": -1}, ValueError, "Received: clipnorm=-1"),
        ({"clipvalue": float("nan")}, ValueError, "Received: clipvalue=nan"),
        ({"global_clipnorm": -1.0}, ValueError, "Received: global_clipnorm=-1.0"),
        ({"eta": 0.1}, ValueError, "eta"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        LARS(**arguments)
