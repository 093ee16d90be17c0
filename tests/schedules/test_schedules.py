"""Warm-up and decays as functions, and the schedule that they have replaced."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet import LARS
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import LearningRateWarmup
from keras_fastnet.schedules import Polynomial
from tests.variables import new_variable

parts = st.floats(0.0, 1.0)
rates = st.floats(0.0, 100.0)
powers = st.sampled_from([0.5, 1.0, 2.0, 2.2])
# As Keras 3.15 wrote it to a `.keras` file before the schedule was deprecated.
SAVED = {
    "module": "keras_fastnet.schedules.warmup_polynomial_decay",
    "class_name": "WarmupPolynomialDecay",
    "config": {
        "peak_learning_rate": 8.0,
        "decay_steps": 10,
        "warmup_steps": 5,
        "warmup_start": 0.5,
        "end_learning_rate": 0.25,
        "power": 1.5,
        "name": "mine",
    },
    "registered_name": "keras_fastnet>WarmupPolynomialDecay",
}


@given(progress=parts, start=rates, rise=st.floats(1e-3, 100.0))
def test_warmup_rises_from_start_to_peak(progress, start, rise):
    peak = start + rise
    for unit in ({"warmup_epochs": 8}, {"warmup_updates": 8}):
        warmup = LearningRateWarmup(peak, **unit, start=start)
        assert (warmup.rate_at(0), warmup.rate_at(8)) == (start, peak)
        expected = pytest.approx(start + progress * rise, rel=1e-12, abs=1e-12)
        assert warmup.rate_at(8 * progress) == expected


@given(a=parts, b=parts, end=parts, power=powers)
def test_decay_falls_from_peak_to_end(a, b, end, power):
    factor = Polynomial(1.0, end, power)
    assert factor(0.0) == pytest.approx(1.0, rel=1e-12)
    assert factor(1.0) == factor(1.5) == end
    assert factor(max(a, b)) <= factor(min(a, b))


def deprecated_schedule(*arguments, **options):
    from keras_fastnet.schedules import WarmupPolynomialDecay

    with pytest.warns(DeprecationWarning, match="is deprecated. Pass a number") as told:
        schedule = WarmupPolynomialDecay(*arguments, **options)
    return schedule, str(told[0].message)


def test_deprecated_schedule_names_the_callback_with_the_same_rates():
    schedule, message = deprecated_schedule(
        32.0, decay_steps=76, warmup_steps=14, warmup_start=0.4, power=2.2
    )
    code = message.split("`")[5]
    warmup = eval(code, {**globals()})
    assert (warmup.warmup_updates, warmup.start) == (14, 0.4)
    for step in range(95):
        assert float(schedule(step)) == pytest.approx(warmup.rate_at(step), rel=1e-5)


def test_deprecated_functions_return_their_rates():
    from keras_fastnet import schedules

    with pytest.warns(DeprecationWarning, match="`gradual_warmup` is deprecated"):
        assert schedules.gradual_warmup(0.25, start=0.0, peak=8.0) == 2.0
    with pytest.warns(DeprecationWarning, match="`polynomial_decay` is deprecated"):
        assert schedules.polynomial_decay(0.25, peak=16.0, end=0.0) == 9.0
    # Ninety epochs at batch 32,768, 14 of them warm-up.
    for epoch, rate in {0: 0.0, 7: 16.0, 14: 32.0, 52: 8.0, 90: 0.0}.items():
        with pytest.warns(DeprecationWarning, match="`warmup_polynomial` is depre"):
            found = schedules.warmup_polynomial(epoch / 90, warmup=14 / 90, peak=32.0)
        assert found == pytest.approx(rate)


def test_deprecated_schedule_is_loaded_from_files_without_a_warning():
    schedule = keras.saving.deserialize_keras_object(SAVED)
    assert schedule.get_config() == SAVED["config"]
    np.testing.assert_allclose(
        [float(schedule(step)) for step in (0, 5, 15, 99)], [0.5, 8.0, 0.25, 0.25]
    )
    optimizer = LARS(schedule)
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert copy._learning_rate.get_config() == SAVED["config"]


def test_model_file_with_the_deprecated_schedule_loads_in_a_new_process(tmp_path):
    schedule, _ = deprecated_schedule(8.0, 10, 5)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(LARS(schedule), "mse")
    model.fit(np.ones((6, 2)), np.ones((6, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    code = (
        "import keras, keras_fastnet; keras_fastnet.LARS; "
        f"model = keras.saving.load_model({str(tmp_path / 'model.keras')!r}); "
        "print(float(model.optimizer.learning_rate))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # Three of five updates of warm-up to 8.
    assert float(done.stdout) == pytest.approx(4.8)


def test_deprecated_schedule_runs_in_a_graph_and_under_xla():
    schedule, _ = deprecated_schedule(8.0, decay_steps=10, warmup_steps=5)
    steps = range(0, 20, 3)
    expected = [float(schedule(step)) for step in steps]
    for jit in (False, True):
        compiled = tf.function(schedule, jit_compile=jit)
        got = [float(compiled(tf.constant(step, tf.int64))) for step in steps]
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_deprecated_schedule_sets_the_rate_of_an_optimizer():
    schedule, _ = deprecated_schedule(8.0, decay_steps=10, warmup_steps=5)
    optimizer = LARS(schedule)
    variable = new_variable([[1.0]])
    seen = []
    for _ in range(6):
        seen.append(float(optimizer.learning_rate))
        optimizer.apply([tf.ones((1, 1))], [variable])
    np.testing.assert_allclose(seen, [0.0, 1.6, 3.2, 4.8, 6.4, 8.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"warmup_start": 8.0}, ValueError, "`warmup_start` must be below"),
        (
            {"end_learning_rate": 9.0},
            ValueError,
            "must not be above `peak_learning_rate`",
        ),
        ({"warmup_steps": 0}, ValueError, "`warmup_steps` must be at least 1"),
        ({"decay_steps": 10.5}, TypeError, "`decay_steps` must be an int"),
        ({"peak_learning_rate": "8"}, TypeError, "must be a number"),
    ],
    ids=str,
)
def test_invalid_arguments_of_the_deprecated_schedule_raise(change, error, message):
    from keras_fastnet.schedules import WarmupPolynomialDecay

    arguments = {"peak_learning_rate": 8.0, "decay_steps": 10, "warmup_steps": 5}
    with pytest.raises(error, match=message):
        WarmupPolynomialDecay(**{**arguments, **change})
