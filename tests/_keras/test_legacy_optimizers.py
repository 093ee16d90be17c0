"""Optimizers of the older kind, as those of tensorflow-addons, with ours within."""

import importlib.util

import numpy as np
import pytest

from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet._keras.keras_api import IS_KERAS_2, keras
from tests.distributed import jobs
from tests.equality.comparing import assert_equal

if not IS_KERAS_2:
    pytest.skip("Keras 3 has no optimizers of this kind", allow_module_level=True)
needs_addons = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_addons") is None,
    reason="needs tensorflow-addons, which is for TensorFlow 2.15",
)


@needs_addons
@pytest.mark.distributed
@pytest.mark.parametrize("accumulation_steps", [None, 3])
def test_addons_on_two_workers(one_device, two_workers, accumulation_steps):
    settings = {
        "optimizer": "addons",
        "accumulation_steps": accumulation_steps,
        "batch_size": 16,
        "count": 96,
    }
    assert_equal(one_device.run("fit", **settings), two_workers.run("fit", **settings))


@needs_addons
def test_lookahead_that_never_looks_is_lars():
    import tensorflow_addons as tfa

    # A step back of 1 is where the fast weights are.
    wrapped = tfa.optimizers.Lookahead(LARS(2.0), slow_step_size=1.0)
    for a, b in zip(weights(wrapped), weights(LARS(2.0)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_an_optimizer_of_the_older_kind_within():
    whole = weights(keras.optimizers.legacy.SGD(0.1, momentum=0.9), 32)
    parts = LargeBatchOptimizer(keras.optimizers.legacy.SGD(0.1, momentum=0.9), 2)
    for a, b in zip(weights(parts, 16), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def weights(optimizer, batch_size=32):
    keras.utils.set_random_seed(0)
    x, y = jobs.examples(96)
    model = jobs.network()
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.fit(x, y, batch_size, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()
