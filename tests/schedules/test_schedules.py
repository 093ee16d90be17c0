"""Warm-up and decays as functions."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_fastnet.callbacks import LearningRateWarmup
from keras_fastnet.schedules import Polynomial, linear_scaling

parts = st.floats(0.0, 1.0)
rates = st.floats(0.0, 100.0)
powers = st.sampled_from([0.5, 1.0, 2.0, 2.2])


@given(progress=parts, start=rates, rise=st.floats(1e-3, 100.0))
def test_warmup_rises_from_start_to_peak(progress, start, rise):
    peak = start + rise
    warmup = LearningRateWarmup(peak, 8, start=start)
    assert (warmup.rate_at(0), warmup.rate_at(8)) == (start, peak)
    expected = pytest.approx(start + progress * rise, rel=1e-12, abs=1e-12)
    assert warmup.rate_at(8 * progress) == expected


@given(a=parts, b=parts, end=parts, power=powers)
def test_decay_falls_from_peak_to_end(a, b, end, power):
    factor = Polynomial(1.0, end, power)
    assert factor(0.0) == pytest.approx(1.0, rel=1e-12)
    assert factor(1.0) == factor(1.5) == end
    assert factor(max(a, b)) <= factor(min(a, b))


def test_copy_of_scaled_rate_keeps_its_derivation():
    rate = linear_scaling(0.1, 8192)
    again = copy.copy(rate)
    assert (again, again.derivation) == (rate, rate.derivation)
