"""LARS inside `fit`: compilation, accumulation, averages, precision, saving."""

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS
from keras_fastnet._keras.keras_api import keras

pytestmark = pytest.mark.smoke

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(32, 6, 6, 2)).astype("float32")
LABELS = rng.integers(0, 3, size=32)
TOKENS = rng.integers(0, 9, size=(32, 5))


def image_model(dtype="float32"):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.layers.Conv2D(4, 3, dtype=dtype),
            keras.layers.BatchNormalization(dtype=dtype),
            keras.layers.ReLU(dtype=dtype),
            keras.layers.Flatten(),
            keras.layers.Dense(3, dtype=dtype, activation="softmax"),
        ]
    )


def token_model():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(9, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


def fit(model, optimizer, inputs=IMAGES, epochs=2, **compile_options):
    model.compile(optimizer, "sparse_categorical_crossentropy", **compile_options)
    model.fit(inputs, LABELS, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


def assert_close(ours, theirs, tolerance=1e-5):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def schedule():
    return keras.optimizers.schedules.CosineDecay(
        0.5, decay_steps=6, warmup_target=4.0, warmup_steps=2
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    "how", [{"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 4}]
)
def test_eager_xla_and_several_steps_per_execution_agree(how, nesterov):
    options = {"weight_decay": 0.01, "nesterov": nesterov}
    plain = fit(image_model(), LARS(schedule(), **options), jit_compile=False)
    assert_close(fit(image_model(), LARS(schedule(), **options), **how), plain)


@pytest.mark.parametrize(
    ("option", "jit_compile"),
    [({}, False), ({}, True), ({"clipnorm": 0.1, "loss_scale_factor": 2.0}, False)],
)
def test_sparse_gradients_in_fit(jit_compile, option):
    # A product with one-hot rows is the same embedding, with a dense gradient.
    got = fit(
        token_model(), LARS(schedule(), **option), TOKENS, jit_compile=jit_compile
    )

    keras.utils.set_random_seed(1)
    table = token_model().get_weights()
    dense = keras.Sequential(
        [
            keras.Input((5, 9)),
            keras.layers.Dense(4, use_bias=False),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    dense.set_weights(table)
    expected = fit(dense, LARS(schedule(), **option), np.eye(9, dtype="f")[TOKENS])
    assert_close(got, expected)


def test_moving_average_of_weights():
    optimizer = LARS(2.0, use_ema=True, ema_momentum=0.5)
    layer = keras.layers.Dense(2, use_bias=False)
    layer.build((None, 3))
    average = None
    for _ in range(4):
        optimizer.apply([tf.ones((3, 2))], layer.trainable_variables)
        now = layer.kernel.numpy().copy()
        average = now if average is None else 0.5 * average + 0.5 * now
    optimizer.finalize_variable_values(layer.trainable_variables)
    np.testing.assert_allclose(layer.kernel, average, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "option"),
    [("mixed_float16", {"loss_scale_factor": 1024.0}), ("mixed_bfloat16", {})],
)
def test_mixed_precision(dtype, option):
    optimizer = LARS(schedule(), **option)
    model = image_model(dtype)
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    mixed = fit(model, optimizer)
    assert_close(mixed, fit(image_model(), LARS(schedule())), tolerance=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 2.0, "nesterov": True},
        {"learning_rate": schedule(), "exclude_from_adaptation": ["dense"]},
        {"learning_rate": 2.0, "use_ema": True, "gradient_accumulation_steps": 2},
    ],
    ids=["constant", "schedule", "average and accumulation"],
)
def test_training_after_loading_is_bit_equal(tmp_path, options):
    def epoch(model):
        model.fit(IMAGES, LABELS, batch_size=8, shuffle=False, verbose=0)

    model = image_model()
    model.compile(LARS(**options), "sparse_categorical_crossentropy")
    epoch(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for trained in (model, loaded):
        epoch(trained)
    states = [
        trained.get_weights() + [v.numpy() for v in trained.optimizer.variables]
        for trained in (model, loaded)
    ]
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_array_equal(ours, theirs)
