"""`benchmarks/accelerator` runs, so that who has a GPU finds it working."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "benchmarks" / "accelerator"


def run(environment, script, *options):
    return subprocess.run(
        [sys.executable, str(FOLDER / script), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )


def test_update(environment):
    ended = run(environment, "update.py", "--smoke")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    for name in ("SGD", "SGD, XLA", "LARS", "LARS, XLA"):
        assert found[name]["seconds"] > 0
        assert found[name]["launches"] > found["tensors"]
    assert found["LARS, XLA"]["launches"] < found["LARS"]["launches"]


def test_training(environment):
    words = ("--precision", "mixed_float16", "--optimizer", "LARS", "--jit-compile")
    ended = run(
        environment, "training.py", "--smoke", *words, "--accumulation-steps", "2"
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["images_a_second"] > 0
    assert found["global_batch"] == 2 * found["batch"]
