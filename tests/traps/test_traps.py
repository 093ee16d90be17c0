"""keras_fastnet handles every failure mode of docs/traps.md.

benchmarks/traps records what stock Keras and TensorFlow do in the same scenarios.
"""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from keras_fastnet import LARS
from tests.traps import scenarios

pytestmark = pytest.mark.distributed


@functools.cache
def found():
    done = subprocess.run(
        [sys.executable, "-m", "tests.traps", "ours"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("scenario", [s.__name__ for s in scenarios.ALL])
def test_on_two_devices(scenario):
    seen, right = found()[scenario]
    assert right, seen


@pytest.mark.parametrize("scenario", [s.__name__ for s in scenarios.ON_TWO_WORKERS])
def test_on_two_workers(two_workers, tmp_path, scenario):
    scenarios.write_shards(tmp_path)
    by_worker = two_workers.run("trapped", scenario=scenario, folder=str(tmp_path))
    seen, right = scenarios.judged(scenario, by_worker)
    assert right, seen


def test_25_a_script_without_a_strategy_ends_with_an_error(fastnet, tmp_path):
    command = ("run", "--workers", 2, scenarios.LONE_SCRIPT, tmp_path)
    seen, right = scenarios.without_strategy(fastnet(*command).returncode, tmp_path)
    assert right, seen


def test_19_epsilon_of_zero_stays_zero():
    assert LARS(epsilon=0.0).epsilon == 0.0
    assert LARS.from_config(LARS(epsilon=0.0).get_config()).epsilon == 0.0


def test_20_norms_are_those_of_the_sum(two_by_two, one_device):
    settings = {"optimizer": "lars", "epochs": 2, "count": 70}
    (one,) = one_device.run("fit", **settings)
    results = two_by_two.run("fit", **settings)
    for result in results:
        for mine, theirs, reference in zip(
            result["weights"], results[0]["weights"], one["weights"], strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
            np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-5)
