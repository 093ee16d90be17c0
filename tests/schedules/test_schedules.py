"""Rates that were scaled with the batch."""

import copy

from keras_fastnet.schedules import linear_scaling


def test_copy_of_scaled_rate_keeps_its_derivation():
    rate = linear_scaling(0.1, 8192)
    again = copy.copy(rate)
    assert (again, again.derivation) == (rate, rate.derivation)
