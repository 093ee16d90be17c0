"""LARS and LargeBatchOptimizer on one device with Keras 2."""

import numpy as np
import pytest
import tensorflow as tf

import keras_fastnet
from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet._keras.keras_api import keras
from tests.distributed.keras_2_jobs import examples, network

pytestmark = pytest.mark.smoke


@pytest.fixture
def strategy():
    return keras_fastnet.TorusStrategy()


def weights(optimizer, batch_size=32, epochs=2):
    keras.utils.set_random_seed(0)
    model = network(None, lambda: optimizer)
    model.fit(*examples(96), batch_size, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "argument", ["loss_scale_factor", "gradient_accumulation_steps"]
)
def test_arguments_of_keras_3_raise(argument):
    with pytest.raises(NotImplementedError, match=f"`{argument}` is for Keras 3"):
        LARS(**{argument: 2})


@pytest.mark.parametrize(
    "make",
    [
        lambda: LARS(2.0),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    ],
    ids=["LARS", "SGD", "legacy.SGD"],
)
def test_micro_batches_equal_one_batch(strategy, make):
    parts = LargeBatchOptimizer(make(), 2)
    assert_close(weights(parts, 16), weights(make(), 32))
    assert parts.iterations.numpy() == 6


def test_an_epoch_ends_with_an_update(strategy):
    # Three batches: two updates, of two batches and of one.
    model = network(None, lambda: LargeBatchOptimizer(LARS(1.0), 2))
    model.fit(*examples(96), 32, epochs=3, verbose=0, validation_data=examples(8))
    assert model.optimizer.iterations.numpy() == 6


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("large", [False, True])
def test_a_saved_model_continues_training(strategy, tmp_path, suffix, large):
    schedule = keras.optimizers.schedules.PolynomialDecay(2.0, 100)
    lars = LARS(schedule, momentum=0.8, exclude_from_adaptation=["dense_1"])
    keras.backend.clear_session()
    model = network(None, lambda: LargeBatchOptimizer(lars, 2) if large else lars)
    model.fit(*examples(96), 32, shuffle=False, verbose=0)
    model.save(tmp_path / f"model{suffix}")
    loaded = keras.models.load_model(tmp_path / f"model{suffix}")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for one in (model, loaded):
        one.fit(*examples(96), 32, epochs=2, shuffle=False, verbose=0)
    assert_close(loaded.get_weights(), model.get_weights())


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_without_decay_equals_that_of_tf_models_official(nesterov):
    """With decay theirs uses the norm of `g + beta w`, the paper a sum of two norms."""
    theirs = pytest.importorskip("official.modeling.optimization.lars")
    random = np.random.default_rng(0)
    start, *gradients = random.normal(size=(21, 5, 4)).astype("float32")
    options = {"momentum": 0.9, "nesterov": nesterov}
    found = []
    for optimizer in (
        LARS(3.0, weight_decay=0.0, **options),
        theirs.LARS(3.0, weight_decay_rate=0.0, **options),
    ):
        variable = tf.Variable(start, name="kernel")
        for gradient in gradients:
            optimizer.apply_gradients([(tf.constant(gradient), variable)])
        found.append(variable.numpy())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)
    assert np.abs(found[0] - start).max() > 0.01


def test_official_configures_rate_and_optimizer(strategy):
    optimization = pytest.importorskip("official.modeling.optimization")
    rates = {"initial_learning_rate": 2.0, "decay_steps": 20}
    factory = optimization.OptimizerFactory(
        optimization.OptimizationConfig(
            {
                "optimizer": {"type": "lars"},
                "learning_rate": {"type": "polynomial", "polynomial": rates},
                "warmup": {"type": "linear", "linear": {"warmup_steps": 4}},
            }
        )
    )
    lars = LARS(factory.build_learning_rate())
    network(None, lambda: lars).fit(*examples(96), 32, epochs=2, verbose=0)
    rate = factory.build_learning_rate()(tf.constant(5))
    np.testing.assert_allclose(lars.learning_rate, rate, rtol=1e-5)
