"""The trust ratio as a function of two norms."""

import math

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.optimizers.trust_ratio import l2_norm, trust_ratio

norms = st.floats(1e-20, 1e20)
coefficients = st.floats(1e-6, 1.0)
small = st.just(0.0) | st.floats(1e-8, 1.0)


def ratio(weight_norm, gradient_norm, **options):
    options.setdefault("trust_coefficient", 0.001)
    return float(
        trust_ratio(tf.constant(weight_norm, tf.float64), gradient_norm, **options)
    )


@given(w=norms, g=norms, eta=coefficients, beta=small, epsilon=small)
def test_equals_the_formula_of_the_paper(w, g, eta, beta, epsilon):
    got = ratio(w, g, trust_coefficient=eta, weight_decay=beta, epsilon=epsilon)
    assert got == pytest.approx(eta * w / (g + beta * w + epsilon), rel=1e-13)


@given(norm=st.just(0.0) | norms, beta=small, epsilon=small)
def test_is_one_if_a_norm_is_zero(norm, beta, epsilon):
    assert ratio(norm, 0.0, weight_decay=beta, epsilon=epsilon) == 1.0
    assert ratio(0.0, norm, weight_decay=beta, epsilon=epsilon) == 1.0


def test_takes_tensors_of_norms():
    got = trust_ratio(
        tf.constant([1.0, 0.0, 4.0]),
        tf.constant([2.0, 3.0, 0.0]),
        trust_coefficient=0.5,
    )
    assert got.numpy().tolist() == [0.25, 1.0, 1.0]


def test_infinite_gradient_norm_gives_zero():
    # Zero times an infinite gradient is NaN, so the overflow still shows.
    assert ratio(1.0, math.inf) == 0.0


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_l2_norm(values):
    got = float(l2_norm(tf.constant(values, tf.float64)))
    assert got == pytest.approx(math.sqrt(math.fsum(v * v for v in values)), rel=1e-12)
