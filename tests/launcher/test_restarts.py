"""`fastnet run --max-restarts` with trainings that back themselves up."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

TRAIN = Path(__file__).parents[1] / "launcher_scripts" / "train_with_restarts.py"

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


@pytest.fixture
def run(fastnet):
    return functools.partial(fastnet, "run", "--workers", 2, "--max-restarts", 4)


def check_weights(folder):
    """Compares with a training that nothing interrupted."""
    for rank in range(2):
        mine, whole = (
            np.load(folder / f"{name}-{rank}.npz") for name in ("weights", "whole")
        )
        for name in whole.files:
            np.testing.assert_array_equal(mine[name], whole[name])


@pytest.mark.parametrize(
    "transport", ["mpi", pytest.param("tensorflow", marks=pytest.mark.slow)]
)
def test_training_that_fails_in_three_ways_ends_with_the_same_weights(
    run, tmp_path, transport
):
    orders = ("1:7:kill", "1:12:stop", "0:15:raise")
    done = run("--transport", transport, TRAIN, tmp_path, *orders)
    assert done.returncode == 0, done.stderr
    assert "worker 1 failed first: killed by SIGKILL" in done.stderr
    assert "worker 1 was suspended, as by SIGSTOP" in done.stderr
    assert "failed first: RuntimeError: no data" in done.stderr
    assert "restart 3 of 4" in done.stderr
    # The callback that kills comes before the one that backs up.
    assert "resuming at epoch 2, batch 4, after 11 updates" in done.stdout
    check_weights(tmp_path)


def test_exception_at_the_same_update_is_not_retried_again(run, tmp_path):
    orders = ("0:3:raise", "1:5:always-raise")
    done = run(TRAIN, tmp_path, *orders)
    assert done.returncode == 1
    assert "worker 0 failed first" in done.stderr
    assert "restart 2 of 4" in done.stderr
    told = "not restarted: the same error came a second time after 5 updates"
    assert told in done.stderr
