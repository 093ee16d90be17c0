"""LARS against a NumPy reference written from Algorithm 1 of arXiv 1708.03888."""

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS
from keras_fastnet._keras.keras_api import keras
from tests.variables import new_variable

pytestmark = pytest.mark.smoke

STEPS = 50
KERNEL, FILTERS, ZERO, BIAS, SCALAR = range(5)
SHAPES = ((6, 5), (3, 3, 2, 4), (4, 3), (5,), ())
# The schedule rises for 20 updates and falls for 30, so that a rate outside the buffer
# would give other weights.
SCHEDULE = keras.optimizers.schedules.CosineDecay(
    0.5, decay_steps=30, warmup_target=8.0, warmup_steps=20
)


def reference(
    weights,
    gradients,
    rates,
    excluded,
    momentum=0.9,
    weight_decay=1e-4,
    trust_coefficient=0.001,
    epsilon=0.0,
    nesterov=False,
):
    """Runs Algorithm 1 in float64, with LARS's rules for zero norms and exclusions."""
    weights = [np.array(w, "float64") for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    for rate, step_gradients in zip(rates, gradients, strict=True):
        for i, g in enumerate(step_gradients):
            w, beta, ratio = weights[i], weight_decay, 1.0
            if i in excluded:
                beta = 0.0
            else:
                w_norm = np.sqrt(np.sum(w * w))
                g_norm = np.sqrt(np.sum(g * g))
                if w_norm > 0 and g_norm > 0:
                    ratio = (
                        trust_coefficient * w_norm / (g_norm + beta * w_norm + epsilon)
                    )
            step = rate * ratio * (g + beta * w)
            velocities[i] = momentum * velocities[i] + step
            weights[i] = w - (
                momentum * velocities[i] + step if nesterov else velocities[i]
            )
    return weights


def rates():
    return [float(SCHEDULE(step)) for step in range(STEPS)]


def train(optimizer, weights, gradients, dtype):
    variables = [
        new_variable(w, dtype=dtype, name=f"weight{i}") for i, w in enumerate(weights)
    ]
    optimizer.build(variables)
    apply = tf.function(lambda grads: optimizer.apply(grads, variables))
    # TensorFlow rewrites the schedule's arithmetic in a graph, which changes its
    # float32 result by a bit. So the rates are computed outside.
    for rate, step in zip(rates(), gradients, strict=True):
        optimizer.learning_rate = rate
        apply([tf.constant(g, dtype) for g in step])
    return [v.numpy() for v in variables]


EXCLUDED = {BIAS, SCALAR}
PATTERNS = [f"weight{i}" for i in (KERNEL, BIAS, SCALAR)]
BY_PATTERN = {
    "exclude_biases_and_norms": False,
    "exclude_from_weight_decay": PATTERNS,
    "exclude_from_adaptation": PATTERNS,
}


# The reference's options, and those of LARS for what it excludes.
@pytest.mark.parametrize(
    ("options", "excluded", "exclusions"),
    [
        ({}, EXCLUDED, {}),
        ({"momentum": 0.0, "weight_decay": 0.0}, EXCLUDED, {}),
        ({"nesterov": True, "weight_decay": 0.05}, EXCLUDED, {}),
        ({"nesterov": True, "momentum": 0.0, "weight_decay": 0.05}, EXCLUDED, {}),
        ({"epsilon": 0.5, "trust_coefficient": 0.02}, EXCLUDED, {}),
        ({"weight_decay": 0.05}, set(), {"exclude_biases_and_norms": False}),
        ({"weight_decay": 0.05}, {KERNEL, BIAS, SCALAR}, BY_PATTERN),
    ],
)
# float64 to rounding.
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)]
)
def test_every_option_agrees_with_algorithm_1(
    options, excluded, exclusions, dtype, tolerance
):
    rng = np.random.default_rng(7)
    weights = [rng.normal(size=shape) for shape in SHAPES]
    weights[ZERO][:] = 0.0
    gradients = [
        [rng.normal(size=shape) * 0.1 for shape in SHAPES] for _ in range(STEPS)
    ]
    gradients[3][KERNEL][:] = 0.0
    expected = reference(weights, gradients, rates(), excluded, **options)
    assert np.linalg.norm(expected[ZERO]) > 0
    found = train(LARS(**options, **exclusions), weights, gradients, dtype)
    for ours, theirs, start in zip(found, expected, weights, strict=True):
        # Relative to the larger of the norms before and after, since a tensor that
        # shrinks keeps the rounding errors of its larger values.
        norms = [np.linalg.norm(np.ravel(w)) for w in (start, theirs)]
        assert np.linalg.norm(np.ravel(ours - theirs)) <= tolerance * max(norms)


def clip_norm(gradient):
    return gradient * (0.2 / max(np.linalg.norm(gradient), 0.2))


@pytest.mark.parametrize(
    ("option", "clip"),
    [
        ({"clipnorm": 0.2}, clip_norm),
        ({"global_clipnorm": 0.2}, clip_norm),
        ({"clipvalue": 0.05}, lambda gradient: np.clip(gradient, -0.05, 0.05)),
        ({"loss_scale_factor": 4.0}, lambda gradient: gradient / 4),
    ],
    ids=["clipnorm", "global_clipnorm", "clipvalue", "loss_scale_factor"],
)
def test_sparse_gradients_sum_duplicates(option, clip):
    rng = np.random.default_rng(3)
    start = rng.normal(size=(7, 3))
    optimizer = LARS(SCHEDULE, weight_decay=0.01, **option)
    variable = new_variable(start, dtype="float64")
    dense = []
    for _ in range(STEPS):
        rows = rng.integers(0, 5, size=6)
        values = rng.normal(size=(6, 3)) * 0.1
        total = np.zeros((7, 3))
        np.add.at(total, rows, values)
        dense.append([clip(total)])
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows), (7, 3))
        optimizer.apply([slices], [variable])
    (expected,) = reference([start], dense, rates(), set(), weight_decay=0.01)
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-11)
