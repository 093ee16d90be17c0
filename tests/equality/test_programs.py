"""Programs of the shape of published ones train on two workers as on one device."""

import numpy as np
import pytest

from tests.programs import PROGRAMS, TOLERANCE
from tests.programs.comparing import largest_difference


@pytest.mark.distributed
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_workers_train_as_one_device(one_device, two_workers, tmp_path, name):
    results = []
    for pool in (one_device, two_workers):
        folder = tmp_path / str(pool.workers)
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
