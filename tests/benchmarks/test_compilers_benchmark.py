"""`benchmarks/compilers` finds our programs; the compilers themselves are not in CI."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compilers" / "export.py"


def exported(environment, file, *options):
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), options[0], str(file), *options[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), file.read_bytes()


def test_update(environment, tmp_path):
    found, program = exported(environment, tmp_path / "update", "update")
    assert found["operations"] > found["tensors"]
    assert b"all-reduce" not in program and b"reduce" in program


@pytest.mark.parametrize("program", ["gpu", "tpu"])
def test_step(environment, tmp_path, program):
    small = ["--batch", "2", "--size", "32", "--precision", "mixed_bfloat16"]
    found, step = exported(environment, tmp_path / program, program, *small)
    assert found["images"] == 2
    assert b"convolution" in step
    assert (b"all-reduce" in step) == (program == "tpu")
    assert b"outfeed" not in step and b"send" not in step
