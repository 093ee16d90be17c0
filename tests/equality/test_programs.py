"""Programs of the shape of published ones train on two workers as on one device."""

import numpy as np
import pytest

from tests.programs import PROGRAMS, TOLERANCE
from tests.programs.comparing import largest_difference


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("cluster", "name"),
    [
        pytest.param("two_workers", "custom_loop", marks=pytest.mark.smoke),
        *(("two_workers", name) for name in PROGRAMS if name != "custom_loop"),
        # No other test runs a custom loop on these.
        pytest.param("one_by_two", "custom_loop", marks=pytest.mark.slow),
        pytest.param("two_mpi", "custom_loop", marks=pytest.mark.slow),
    ],
)
def test_workers_train_as_one_device(request, one_device, tmp_path, cluster, name):
    results = []
    for pool in (one_device, request.getfixturevalue(cluster)):
        folder = tmp_path / str(len(results))
        folder.mkdir()
        results += pool.run("program", name=name, folder=str(folder))
    alone, *several = results
    for result in several:
        difference, where = largest_difference(result["results"], alone["results"])
        assert difference < TOLERANCE, where
    assert _moves(alone["results"]), "it trains nothing"


def _moves(results):
    curves = next(iter(results.values())).values()
    return any(np.ptp(curve) > 1e-3 * np.abs(curve).max() for curve in curves)
