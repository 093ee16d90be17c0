"""Steps, logs and loops of programs that were written for one device."""

import numpy as np
import pytest

pytestmark = pytest.mark.distributed


def assert_equal(one, several, rtol=1e-4):
    """What each worker has found is what one device has, in all parts."""
    (reference,) = one
    for found in several:
        assert found.keys() == reference.keys()
        for name, expected in reference.items():
            _compare(found[name], expected, rtol, name)


def _compare(found, expected, rtol, name):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), name
        for key, value in expected.items():
            _compare(found[key], value, rtol, f"{name}/{key}")
    elif isinstance(expected, list) and not _is_numbers(expected):
        assert len(found) == len(expected), name
        for mine, theirs in zip(found, expected, strict=True):
            _compare(mine, theirs, rtol, name)
    elif expected is None or isinstance(expected, str | tuple):
        assert found == expected, name
    else:
        # A sum of zero leaves rounding errors.
        np.testing.assert_allclose(found, expected, rtol, 1e-5, err_msg=name)


def _is_numbers(values):
    return all(isinstance(value, int | float | np.number) for value in values)


@pytest.fixture(
    params=[
        "two_workers",
        "one_by_two",
        pytest.param("three_workers", marks=pytest.mark.slow),
    ]
)
def workers(request):
    """Two workers, two devices, and more workers than some batches have examples."""
    return request.getfixturevalue(request.param)


@pytest.mark.smoke
def test_a_model_without_call_that_has_several_optimizers(one_device, workers):
    job = "fit_adversaries"
    assert_equal(one_device.run(job), workers.run(job))


def test_the_same_in_micro_batches(one_device, two_workers):
    job = "fit_adversaries_in_micro_batches"
    assert_equal(one_device.run(job), two_workers.run(job))


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
@pytest.mark.parametrize("kind", ["method", "tf.function", "attribute", "trainer"])
def test_ways_to_give_a_step(one_device, two_workers, kind, eager):
    settings = {"kind": kind, "eager": eager}
    one = one_device.run("fit_own_steps", **settings)
    assert_equal(one, two_workers.run("fit_own_steps", **settings))


def test_a_step_that_is_traced_for_each_device(one_device, one_by_two):
    settings = {"kind": "tf.function"}
    one = one_device.run("fit_own_steps", **settings)
    assert_equal(one, one_by_two.run("fit_own_steps", **settings))


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
def test_29_logs_of_a_test_step(one_device, workers, eager):
    job = "evaluate_own_step"
    assert_equal(one_device.run(job, eager=eager), workers.run(job, eager=eager))


@pytest.mark.parametrize("inner", [False, True], ids=["variable", "value"])
def test_variables_in_callbacks(one_device, workers, inner):
    job = "values_in_callbacks"
    assert_equal(one_device.run(job, inner=inner), workers.run(job, inner=inner))


def test_an_optimizer_for_each_layer(one_device, two_workers):
    (one,) = one_device.run("fit_several_optimizers")
    del one["printed"]
    found = two_workers.run("fit_several_optimizers")
    assert "learning rate 0.01; learning rate 0.1" in found[0].pop("printed")
    found[1].pop("printed")
    assert_equal([one], found)


@pytest.mark.parametrize(
    "kind",
    [
        "LSTM",
        pytest.param("GRU", marks=pytest.mark.slow),
        pytest.param("SimpleRNN", marks=pytest.mark.slow),
        "cells",
    ],
)
def test_stateful_layers(one_device, two_workers, kind):
    settings = {"kind": kind, "batch_size": 4}
    one = one_device.run("fit_stateful", **settings)
    assert_equal(one, two_workers.run("fit_stateful", **settings))


def test_stateful_layers_on_unequal_shares(one_device, workers):
    settings = {"kind": "GRU", "batch_size": 2}
    one = one_device.run("fit_stateful", **settings)
    assert_equal(one, workers.run("fit_stateful", **settings))


@pytest.mark.parametrize(
    ("data", "steps"),
    [
        *(("known", steps) for steps in (1, 3, 101)),
        *(pytest.param("known", steps, marks=pytest.mark.slow) for steps in (2, 7)),
        *(pytest.param("unknown", steps, marks=pytest.mark.slow) for steps in (2, 7)),
        ("unknown", 3),
        ("endless", 3),
    ],
)
def test_30_callbacks_of_several_steps(one_device, two_workers, steps, data):
    settings = {"steps": steps, "data": data}
    one = one_device.run("calls_of_callbacks", **settings)
    assert_equal(one, two_workers.run("calls_of_callbacks", **settings))


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["traced", "eager"])
def test_collectives_in_a_loss(one_device, two_workers, run_eagerly):
    settings = {"run_eagerly": run_eagerly}
    one = one_device.run("fit_contrasted", **settings)
    assert_equal(one, two_workers.run("fit_contrasted", **settings))
