"""`fit` of Keras 2 on two workers, in TensorFlow's own loop."""

import numpy as np
import pytest

from tests.distributed.worker_pool import WorkerError
from tests.equality.comparing import assert_equal

GROWTH = {0: 16, 1: 32, 2: 96}
LARGE = {"optimizer": "large", "epochs": 2}
SMOKE = (
    {"optimizer": "lars"},
    LARGE,
    {"optimizer": "growing", "phases": GROWTH, "batch_size": 16},
)


@pytest.mark.parametrize(
    ("cluster", "settings"),
    [
        *(pytest.param("two_workers", each, marks=pytest.mark.smoke) for each in SMOKE),
        ("two_workers", {"optimizer": "clipped", "data": "dataset"}),
        ("two_workers", {"count": 74, "optimizer": "growing", "phases": {0: 32}}),
        ("two_workers", {**LARGE, "steps_per_epoch": 2, "data": "dataset"}),
        ("one_by_two", LARGE),
    ],
    ids=str,
)
def test_a_cluster_equals_one_device(request, one_device, cluster, settings):
    found = request.getfixturevalue(cluster).run("fit_with_keras_2", **settings)
    alone = one_device.run("fit_with_keras_2", **settings)
    assert_equal(alone, found, apart=("printed",))
    assert all(result["printed"] == "" for result in found[1:])


@pytest.mark.smoke
def test_growth_equals_separate_fits(one_device, two_workers):
    settings = {"optimizer": "growing", "batch_size": 16, "phases": GROWTH}
    (alone,) = one_device.run("fits_of_growing_batches", sizes=list(GROWTH.values()))
    grown = two_workers.run("fit_with_keras_2", **settings, warmup=False)
    for mine, theirs in zip(grown[0]["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert [result["updates"] for result in grown] == [6 + 3 + 1] * 2


def test_a_workers_own_data(two_workers):
    settings = {"optimizer": "growing", "data": "from function", "phases": {0: 64}}
    found = two_workers.run("fit_with_keras_2", **settings)
    assert "global batch 64 = 2 x 32" in found[0]["printed"]
    assert "with Keras 2" not in found[0]["printed"]
    assert found[0]["updates"] == 2 * 3
    for mine, theirs in zip(*(result["weights"] for result in found), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"count": 73}, "batches of 32, the last of 9, on 2 replicas"),
        ({"count": 74}, ""),
        ({"data": "shuffled"}, "batches of unknown sizes, on 2"),
        ({"data": "dataset"}, ""),
    ],
    ids=str,
)
def test_unequal_weights_are_reported(two_workers, settings, told):
    printed = two_workers.run("fit_with_keras_2", epochs=1, **settings)[0]["printed"]
    assert ("with Keras 2 all replicas, and all batches" in printed) == bool(told)
    assert told in printed


def test_shuffled_arrays_equal_one_device(one_device, two_workers):
    (alone,) = one_device.run("seeded_fit", seeds=[3, 3])
    for found in two_workers.run("seeded_fit", seeds=[3, 3]):
        for mine, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(WorkerError, match="must set the same seed to shuffle"):
        two_workers.run("seeded_fit", seeds=[0, 1])


def test_each_replica_drops_other_units(two_workers):
    first, second = two_workers.run("masks")
    assert len(first) == len(second) == 3
    assert all(mine != theirs for mine, theirs in zip(first, second, strict=True))
    assert first[0] != first[1]


def test_a_model_outside_of_the_scope_is_not_trained(two_workers):
    with pytest.raises(WorkerError, match="must be made within"):
        two_workers.run("outside_of_the_scope")


def test_an_overflow_on_one_worker_skips_the_update_on_all(two_workers):
    # Row 0 is the first worker's, row 31 the second's.
    expected = [(8.0, 1), (4.0, 1), (2.0, 1)]
    for found in two_workers.run("loss_scales", rows=[0, 31]):
        assert found == expected


def test_trust_ratios(one_device, two_workers):
    (alone,) = one_device.run("trust_ratios")
    assert alone["trust_ratio_min"][0] > 0
    for found in two_workers.run("trust_ratios"):
        assert found.keys() == alone.keys()
        for name, values in alone.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("suffix", [".keras", ""])
def test_a_model_that_all_have_saved_continues_training(two_workers, tmp_path, suffix):
    for own, loaded in two_workers.run(
        "saved_by_all", folder=str(tmp_path), suffix=suffix
    ):
        for mine, theirs in zip(own[0], loaded[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        # A SavedModel has the configuration of an optimizer, not its state.
        if suffix:
            np.testing.assert_allclose(own[1], loaded[1], rtol=1e-5)
