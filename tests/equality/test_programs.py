"""Programs of the shape of published ones train on two workers as on one device."""

from typing import Any

import numpy as np
import pytest

from tests.programs import PROGRAMS, TOLERANCE


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
        difference, where = largest_difference(result, alone)
        assert difference < TOLERANCE, where
    assert _moves(alone), "it trains nothing"


def largest_difference(ours: Any, theirs: Any, name: str = "") -> tuple[float, str]:
    """Returns the largest relative difference of two results, and where it is.

    Args:
        ours: Numbers in lists and dicts.
        theirs: The reference, in the same structure.
        name: The path of the results within the structure.
    """
    if isinstance(theirs, dict):
        if set(ours) != set(theirs):
            return float("inf"), f"{name}: {sorted(ours)}, not {sorted(theirs)}"
        return max(
            largest_difference(ours[k], theirs[k], f"{name}/{k}") for k in theirs
        )
    ours, theirs = np.asarray(ours, "float64"), np.asarray(theirs, "float64")
    finite = np.isfinite(ours).all() and np.isfinite(theirs).all()
    if ours.shape != theirs.shape or not finite:
        return float("inf"), f"{name}: {ours}, not {theirs}"
    scale = np.abs(theirs).max() or 1.0
    return float(np.abs(ours - theirs).max() / scale), name


def _moves(results):
    curves = next(iter(results.values())).values()
    return any(np.ptp(curve) > 1e-3 * np.abs(curve).max() for curve in curves)
