"""Momentum correction against momentum with the rate outside, in NumPy."""

import numpy as np
import pytest

from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BatchGrowth, LearningRateWarmup
from keras_fastnet.schedules import Steps

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(96, 4)).astype("float32")
Y = GENERATOR.normal(size=(96, 2)).astype("float32")
START = GENERATOR.normal(size=(4, 2)).astype("float32")
MICRO_BATCH = 16
EPOCHS = 4
STEPS = Steps({1: 0.1})


def trained(optimizer, *callbacks):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=False)])
    model.set_weights([START])
    model.compile(optimizer=optimizer, loss="mse")
    options = {"shuffle": False, "verbose": 0, "callbacks": callbacks}
    model.fit(X, Y, MICRO_BATCH, EPOCHS, **options)
    return model.get_weights()[0]


def in_numpy(update, rate_at, batches):
    """Trains; `update` takes weight, gradient, rate and a dict for its state."""
    weight, kept = START.astype("float64"), {"u": 0.0}
    for epoch, batch in enumerate(batches):
        for start in range(0, len(X), batch):
            x, y = X[start : start + batch], Y[start : start + batch]
            gradient = x.T @ (2 * (x @ weight - y) / y.size)
            rate = rate_at(epoch + start / len(X))
            if rate:  # A rate of 0 clears the momentum.
                weight = update(weight, gradient, rate, kept)
    return weight


def nesterov_with_rate_outside(weight, gradient, rate, kept):
    kept["u"] = 0.9 * kept["u"] + gradient
    return weight - rate * (0.9 * kept["u"] + gradient)


def lars_with_rate_outside(weight, gradient, rate, kept):
    norms = np.linalg.norm(weight), np.linalg.norm(gradient)
    ratio = 0.1 * norms[0] / (norms[1] + 0.01 * norms[0])
    kept["u"] = 0.9 * kept["u"] + ratio * (gradient + 0.01 * weight)
    return weight - rate * kept["u"]


REFERENCES = {
    "nesterov": (
        lambda: keras.optimizers.SGD(1.0, momentum=0.9, nesterov=True),
        nesterov_with_rate_outside,
    ),
    "lars": (
        lambda: LARS(1.0, weight_decay=0.01, trust_coefficient=0.1),
        lars_with_rate_outside,
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("start", [0.0, 0.01])
def test_warmup_and_jump(name, start):
    make, update = REFERENCES[name]
    schedule = {"peak": 0.05, "start": start, "warmup_epochs": 1, "then": STEPS}
    rate_at = LearningRateWarmup(**schedule).rate_at
    expected = in_numpy(update, rate_at, EPOCHS * [MICRO_BATCH])
    warmup = LearningRateWarmup(**schedule, momentum_correction=True)
    np.testing.assert_allclose(trained(make(), warmup), expected, rtol=1e-5)
    # Without the correction the weights differ by more than the tolerance.
    uncorrected = trained(make(), LearningRateWarmup(**schedule))
    assert np.abs(uncorrected - expected).max() > 1e-3


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("warm", [False, True])
def test_rate_scaled_with_the_batch(name, warm):
    make, update = REFERENCES[name]

    def rate_at(epoch):
        rate = 0.02 * min(epoch, 1.0) if warm else 0.02
        return rate * (1 if epoch < 2 else 3)

    expected = in_numpy(update, rate_at, [16, 16, 48, 48])
    optimizer = make()
    optimizer.learning_rate = 0.02
    phases = {0: 16, 2: 48}
    callbacks = [BatchGrowth(phases, rate_exponent=1.0, momentum_correction=True)]
    if warm:
        callbacks.append(LearningRateWarmup(0.02, 1, momentum_correction=True))
    weight = trained(LargeBatchOptimizer(optimizer), *callbacks)
    np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_invalid_uses_raise():
    with pytest.raises(ValueError, match=r"SGD or LARS.*Received: Adam"):
        trained("adam", LearningRateWarmup(0.05, 1, momentum_correction=True))
    with pytest.raises(ValueError, match="requires a `rate_exponent`"):
        BatchGrowth({0: 16}, momentum_correction=True)
