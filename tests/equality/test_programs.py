"""Programs of the shape of published ones train on two workers as on one device."""

import numpy as np
import pytest

from tests.programs import PROGRAMS
from tests.programs.comparing import largest_difference

# Run before a change lands; the others before a release.
QUICK = ("custom_train_step", "gan", "image_folder", "multi_worker_keras")


@pytest.mark.distributed
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
        for name in PROGRAMS
    ],
)
def test_two_workers_train_as_one_device(one_device, two_workers, tmp_path, name):
    results = []
    for pool in (one_device, two_workers):
        folder = tmp_path / str(pool.workers)
        folder.mkdir()
        results += pool.run("program", name=name, folder=str(folder))
    alone, *several = results
    for result in several:
        difference, where = largest_difference(result["results"], alone["results"])
        assert difference < alone["tolerance"], where
    assert _moves(alone["results"]), "it trains nothing"


def _moves(results):
    curves = next(iter(results.values())).values()
    return any(np.ptp(curve) > 1e-3 * np.abs(curve).max() for curve in curves)


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({"loss": [1.0, 2.0]}, 0.0),
        ({"loss": [1.0, 2.5]}, 0.25),
        ({"loss": [1.0]}, np.inf),
        ({"loss": [1.0, np.nan]}, np.inf),
        ({"val_loss": [1.0, 2.0]}, np.inf),
    ],
    ids=str,
)
def test_a_difference_is_relative_to_the_largest_value(ours, expected):
    assert largest_difference(ours, {"loss": [1.0, 2.0]})[0] == expected
