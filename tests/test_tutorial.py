"""The script of keras#20585 runs on two workers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scripts") / "multi_worker_tutorial.py"


@pytest.mark.distributed
def test_multi_worker_tutorial():
    command = [sys.executable, "-m", "keras_fastnet.cli", "run", "--workers", "2"]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    done = subprocess.run(
        [*command, str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "Epoch 3/3" in done.stdout
    accuracy = re.findall(r"accuracy: (0\.\d+)", done.stdout)
    assert float(accuracy[-1]) > 0.9
