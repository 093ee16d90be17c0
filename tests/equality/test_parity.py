"""N workers take the same updates as one device with the same global batch."""

import numpy as np
import pytest

pytestmark = pytest.mark.distributed


def assert_parity(one, several, rtol=1e-5):
    """All workers end with one device's state, and bit for bit with each other's."""
    reference = one[0]
    scale = max(np.abs(w).max() for w in reference["weights"])
    for result in several:
        assert result["iterations"] == reference["iterations"]
        for mine, theirs in zip(result["weights"], several[0]["weights"], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        for mine, theirs in zip(result["weights"], reference["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol * scale)
        for name in result.get("history", {}):
            np.testing.assert_allclose(
                result["history"][name], reference["history"][name], rtol=1e-4
            )
        for name in {"evaluate", "predict"} & set(result):
            np.testing.assert_allclose(
                result[name], reference[name], rtol=1e-4, atol=1e-5
            )


@pytest.fixture(
    params=[
        pytest.param("two_workers", marks=pytest.mark.smoke),
        "four_workers",
        "two_by_two",
        "one_by_two",
    ]
)
def workers(request):
    """Each kind of cluster in turn."""
    return request.getfixturevalue(request.param)


def test_fit(one_device, workers):
    settings = {"optimizer": "lars", "epochs": 4}
    assert_parity(one_device.run("fit", **settings), workers.run("fit", **settings))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_optimizers(one_device, two_workers, optimizer):
    settings = {"optimizer": optimizer, "epochs": 4}
    assert_parity(one_device.run("fit", **settings), two_workers.run("fit", **settings))


@pytest.mark.parametrize(("data", "count"), [("arrays", 70), ("known", 65)])
def test_last_batch_that_does_not_divide(one_device, workers, data, count):
    settings = {"count": count, "data": data, "optimizer": "lars"}
    assert_parity(one_device.run("fit", **settings), workers.run("fit", **settings))


def test_dropped_remainder(one_device, two_workers):
    settings = {"count": 70, "data": "dropped", "epochs": 2}
    assert_parity(one_device.run("fit", **settings), two_workers.run("fit", **settings))


def test_unknown_cardinality_costs_no_update(one_device, two_workers):
    # Keras itself counts an update for the end of the data, even on one device, so
    # the reference has a dataset whose length is known.
    settings = {"count": 70, "optimizer": "adam", "epochs": 3}
    assert_parity(
        one_device.run("fit", data="known", **settings),
        two_workers.run("fit", data="unknown", **settings),
    )


@pytest.mark.smoke
@pytest.mark.parametrize(
    "clipping", [{"clipnorm": 1e-2}, {"global_clipnorm": 1e-2}, {"clipvalue": 1e-3}]
)
def test_clipping_acts_on_the_sum(one_device, two_workers, clipping):
    settings = {"optimizer_options": clipping, "epochs": 2}
    assert_parity(one_device.run("fit", **settings), two_workers.run("fit", **settings))


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 3},
        {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    ],
    ids=["accumulation", "ema"],
)
def test_base_optimizer_options(one_device, two_workers, options):
    settings = {"optimizer": "lars", "optimizer_options": options, "epochs": 2}
    assert_parity(one_device.run("fit", **settings), two_workers.run("fit", **settings))


@pytest.mark.parametrize(
    ("job", "settings"),
    [
        pytest.param(
            "fit",
            {"normalization": "synchronized", "count": 70},
            marks=pytest.mark.smoke,
        ),
        ("fit", {"fit_options": {"class_weight": {0: 1.0, 1: 3.0}}, "count": 70}),
        ("fit", {"fit_options": {"validation_split": 0.25}}),
        ("fit", {"fit_options": {"steps_per_epoch": 2}, "data": "known"}),
        ("fit", {"compile_options": {"steps_per_execution": 2}, "count": 128}),
        ("fit", {"compile_options": {"run_eagerly": True}, "epochs": 1}),
        pytest.param("fit_structures", {"count": 64}, marks=pytest.mark.slow),
        pytest.param("fit_structures", {"count": 70}, marks=pytest.mark.smoke),
        ("fit_iterables", {"kind": "generator"}),
        pytest.param("fit_iterables", {"kind": "pydataset"}, marks=pytest.mark.smoke),
        pytest.param("on_batch", {}, marks=pytest.mark.smoke),
        pytest.param("custom_loop", {}, marks=pytest.mark.smoke),
    ],
    ids=str,
)
def test_ways_to_train(one_device, two_workers, job, settings):
    assert_parity(one_device.run(job, **settings), two_workers.run(job, **settings))


@pytest.mark.smoke
@pytest.mark.parametrize("through", ["option", "function"])
def test_own_data_on_every_worker(one_device, two_workers, through):
    one = one_device.run("fit_own_data", through=through)
    two = two_workers.run("fit_own_data", through=through)
    assert_parity(one, two)
    assert two[0]["accuracy"] == two[1]["accuracy"]
