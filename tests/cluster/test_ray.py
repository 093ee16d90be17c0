"""A real Ray starts workers, and restarts them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.clusters, pytest.mark.slow]
pytest.importorskip("ray", reason="Ray is not installed: `make test-clusters`")

SCRIPT = str(Path(__file__).parents[2] / "examples" / "clusters" / "ray_train.py")
EPOCHS = 8


def train(storage, kill=False):
    """Trains, and returns what was printed; a worker may be killed in epoch 6."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--epochs", str(EPOCHS), "--storage", str(storage)],
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "RAY_DEDUP_LOGS": "0",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **{f"TF_NUM_{pool}_THREADS": "1" for pool in ("INTRAOP", "INTEROP")},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if kill and f"Epoch 6/{EPOCHS}" in line:
                chief = re.search(r"RayTrainWorker pid=(\d+)", line)[1]
                pids = set(re.findall(r"RayTrainWorker pid=(\d+)", "".join(lines)))
                (other,) = pids - {chief}
                os.kill(int(other), signal.SIGKILL)
                kill = False
        assert process.wait(60) == 0, "".join(lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return "".join(lines)


def result(text):
    """Returns the metrics that Ray has, and the mark of the weights."""
    metrics, weights = re.findall(r"^(?:metrics|weights)  (.*)$", text, re.M)
    return metrics, weights


@pytest.mark.timeout(600)
def test_ray_restarts_a_killed_worker(tmp_path):
    whole = train(tmp_path / "whole")
    metrics, weights = result(whole)
    assert "'global_batch': 256" in metrics
    assert float(re.search(r"'accuracy': ([\d.]+)", metrics)[1]) > 0.9
    assert "grid       1 row x 2 columns" in whole
    killed = train(tmp_path / "killed", kill=True)
    assert "fastnet: resuming at epoch 6, batch 1, " in killed
    assert result(killed)[1] == weights
