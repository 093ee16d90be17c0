"""Warm-up and polynomial decay: the functions and the Keras schedule."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet import LARS
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.schedules import (
    WarmupPolynomialDecay,
    gradual_warmup,
    polynomial_decay,
    warmup_polynomial,
)
from tests.variables import new_variable

parts = st.floats(0.0, 1.0)
rates = st.floats(0.0, 100.0)
powers = st.sampled_from([0.5, 1.0, 2.0, 2.2])


@given(progress=parts, start=rates, rise=st.floats(1e-3, 100.0))
def test_warmup_rises_from_start_to_peak(progress, start, rise):
    peak = start + rise
    assert gradual_warmup(0.0, start=start, peak=peak) == start
    assert gradual_warmup(1.0, start=start, peak=peak) == peak
    rate = gradual_warmup(progress, start=start, peak=peak)
    assert rate == pytest.approx(start + progress * rise, rel=1e-12, abs=1e-12)


@given(a=parts, b=parts, end=rates, fall=rates, power=powers)
def test_decay_falls_from_peak_to_end(a, b, end, fall, power):
    def rate(progress):
        return polynomial_decay(progress, peak=end + fall, end=end, power=power)

    assert rate(0.0) == pytest.approx(end + fall, rel=1e-12)
    assert rate(1.0) == end
    assert rate(max(a, b)) <= rate(min(a, b))


@given(
    progress=st.floats(-0.5, 1.5),
    warmup=st.floats(0.01, 0.9),
    start=rates,
    rise=st.floats(1e-3, 100.0),
)
def test_warmup_polynomial_stays_within_its_bounds(progress, warmup, start, rise):
    peak = start + rise
    rate = warmup_polynomial(progress, warmup=warmup, peak=peak, start=start)
    assert 0.0 <= rate <= peak * (1 + 1e-12)
    if progress >= 1:
        assert rate == 0.0
    if progress <= 0:
        assert rate == start


@pytest.mark.parametrize("power", [1.0, 2.0, 2.2])
def test_schedule_agrees_with_the_function(power):
    schedule = WarmupPolynomialDecay(
        32.0, decay_steps=76, warmup_steps=14, warmup_start=0.4, power=power
    )
    for step in range(-1, 95):
        expected = warmup_polynomial(
            step / 90, warmup=14 / 90, peak=32.0, start=0.4, end=1e-4, power=power
        )
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5), step


def test_decay_steps_do_not_include_the_warmup():
    schedule = WarmupPolynomialDecay(8.0, decay_steps=10, warmup_steps=5)
    np.testing.assert_allclose(
        [float(schedule(s)) for s in (0, 1, 4, 5, 10, 15, 1000)],
        [0.0, 1.6, 6.4, 8.0, 8.0 / 4 + 1e-4 * 3 / 4, 1e-4, 1e-4],
        rtol=1e-6,
    )


def test_peak_and_end_are_exact_in_float32():
    schedule = WarmupPolynomialDecay(32.0, 1000, 100, end_learning_rate=1e-4)
    assert float(schedule(1100)) == np.float32(1e-4)
    assert float(schedule(100)) == 32.0


def test_schedule_runs_in_a_graph_and_under_xla():
    schedule = WarmupPolynomialDecay(8.0, decay_steps=10, warmup_steps=5)
    steps = range(0, 20, 3)
    expected = [float(schedule(step)) for step in steps]
    for jit in (False, True):
        compiled = tf.function(schedule, jit_compile=jit)
        got = [float(compiled(tf.constant(step, tf.int64))) for step in steps]
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_schedule_sets_the_rate_of_an_optimizer():
    schedule = WarmupPolynomialDecay(8.0, decay_steps=10, warmup_steps=5)
    optimizer = LARS(schedule)
    variable = new_variable([[1.0]])
    seen = []
    for _ in range(6):
        seen.append(float(optimizer.learning_rate))
        optimizer.apply([tf.ones((1, 1))], [variable])
    np.testing.assert_allclose(seen, [0.0, 1.6, 3.2, 4.8, 6.4, 8.0], rtol=1e-6)


def test_config_round_trip():
    schedule = WarmupPolynomialDecay(
        8.0, 10, 5, warmup_start=0.5, end_learning_rate=0.25, power=1.5, name="mine"
    )
    copy = WarmupPolynomialDecay.from_config(schedule.get_config())
    assert copy.get_config() == schedule.get_config()
    optimizer = keras.optimizers.deserialize(
        keras.optimizers.serialize(LARS(learning_rate=schedule))
    )
    assert optimizer._learning_rate.get_config() == schedule.get_config()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"warmup_start": 8.0}, ValueError, "`warmup_start` must be below"),
        ({"warmup_start": 9.0}, ValueError, "Received: warmup_start=9.0"),
        (
            {"end_learning_rate": 9.0},
            ValueError,
            "must not be above `peak_learning_rate`",
        ),
        ({"warmup_steps": 0}, ValueError, "`warmup_steps` must be at least 1"),
        ({"decay_steps": 0}, ValueError, "`decay_steps` must be at least 1"),
        ({"decay_steps": -5}, ValueError, "Received: decay_steps=-5"),
        ({"decay_steps": 10.5}, TypeError, "`decay_steps` must be an int"),
        ({"warmup_steps": True}, TypeError, "`warmup_steps` must be an int"),
        ({"peak_learning_rate": 0.0}, ValueError, "above 0"),
        ({"peak_learning_rate": "8"}, TypeError, "must be a number"),
        ({"warmup_start": -1.0}, ValueError, "at least 0"),
        ({"end_learning_rate": float("nan")}, ValueError, "at least 0"),
        ({"power": 0.0}, ValueError, "`power` must be a number above 0"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(change, error, message):
    arguments = {"peak_learning_rate": 8.0, "decay_steps": 10, "warmup_steps": 5}
    with pytest.raises(error, match=message):
        WarmupPolynomialDecay(**{**arguments, **change})


def test_numpy_numbers_are_converted():
    schedule = WarmupPolynomialDecay(np.float32(8), np.int64(10), np.int32(5))
    assert type(schedule.get_config()["decay_steps"]) is int
    assert type(schedule.get_config()["peak_learning_rate"]) is float
