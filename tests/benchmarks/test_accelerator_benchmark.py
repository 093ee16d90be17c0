"""`benchmarks/accelerator` runs, so that who has a GPU finds it working."""

import json
import subprocess
import sys

import pytest

from tests.documentation import ROOT

pytestmark = pytest.mark.slow


def results(environment, script, *options):
    path = ROOT / "benchmarks" / "accelerator" / script
    command = [sys.executable, path, "--smoke", *options]
    printed = subprocess.check_output(command, env=environment, text=True, timeout=250)
    return json.loads(printed.splitlines()[-1])


def test_update(environment):
    found = results(environment, "update.py")
    for name in ("SGD", "SGD, XLA", "LARS", "LARS, XLA"):
        assert found[name]["seconds"] > 0
        assert found[name]["launches"] > found["tensors"]
    assert found["LARS, XLA"]["launches"] < found["LARS"]["launches"]


def test_training(environment):
    words = ["--precision", "mixed_float16", "--optimizer", "LARS", "--jit-compile"]
    found = results(environment, "training.py", *words, "--accumulation-steps", "2")
    assert found["images_a_second"] > 0
    assert found["global_batch"] == 2 * found["batch"]
