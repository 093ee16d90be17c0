"""Steps that XLA compiles: as a whole on one device, in parts on several replicas."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

# It compiles a ResNet five times. tests/equality trains with XLA in every run.
pytestmark = [pytest.mark.distributed, pytest.mark.slow]

# Forward and backward pass, another micro-batch, the mean, the update: of each replica.
PARTS = 5


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What `tests.xla_training` prints."""
    folder = tmp_path_factory.mktemp("xla")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.xla_training", str(folder)],
        env={
            **os.environ,
            "XLA_FLAGS": f"--xla_dump_to={folder} --xla_dump_hlo_as_text",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("where", ["one", "two"])
def test_same_training(outcomes, where):
    compiled, plain = outcomes[f"{where} compiled"], outcomes[where]
    assert compiled["difference"] < 1e-6
    np.testing.assert_allclose(compiled["loss"], plain["loss"], rtol=1e-6)
    assert compiled["updates"] == plain["updates"] == 6 + 3 + 2


def test_float16_with_loss_scaling(outcomes):
    compiled = outcomes["two float16 compiled"]
    np.testing.assert_allclose(compiled["loss"], outcomes["two"]["loss"], rtol=1e-2)
    assert compiled["updates"] == 11


@pytest.mark.parametrize(
    ("case", "first", "later"),
    [
        ("one", 0, 0),
        ("two", 0, 0),
        ("one compiled", 1, 1),
        # The second micro-batch of an update comes with the second epoch.
        ("two compiled", 2 * (PARTS - 1), 2 * PARTS),
        ("two float16 compiled", 2 * (PARTS - 1), 2 * PARTS),
    ],
)
def test_batch_growth_compiles_nothing_again(outcomes, case, first, later):
    outcome = outcomes[case]
    assert outcome["compilations"] == [first, later, later]
    assert len(set(outcome["traces"])) == 1


def test_no_transfer_to_the_host_within_a_program(outcomes):
    assert outcomes["transfers"] == []
