"""`benchmarks/large_batch_accuracy` trains with each kind of batch, and resumes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "large_batch_accuracy"


@pytest.fixture
def results_module(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("results")
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs.jsonl")
    yield module
    del sys.modules["results"]


def ended(run, accuracy):
    settings = {name: getattr(run, name) for name in run.__dataclass_fields__}
    return {**settings, "accuracy": accuracy}


def test_rates_are_tuned_before_the_runs_that_need_them(results_module):
    results = results_module.Results()
    accuracies = {0.2: 0.5, 0.4: 0.6, 0.8: 0.7, 1.6: 0.65}
    for rate in (0.2, 0.4, 0.8, 1.6):
        run = next(results.missing())
        assert (run.method, run.global_batch, run.tune) == ("sgd-warmup", 256, True)
        assert run.rate == rate
        results.add(ended(run, accuracies[rate]))
    baseline = next(results.missing())
    assert (baseline.rate, baseline.seed, baseline.tune) == (0.8, 1, False)
    results.add(ended(baseline, 0.9))
    scaled = next(results.missing())
    assert (scaled.global_batch, scaled.rate) == (1_280, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "method", "growth", "updates"),
    [
        ("small", "sgd-warmup", "none", [2, 4, 6]),
        ("large", "lars", "with-decay", [2, 3, 4]),
    ],
)
def test_updates_follow_the_batch(
    environment, tmp_path, network, method, growth, updates
):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (2_560, 32, 32, 3), np.uint8)
    labels = generator.integers(0, 10, 2_560)
    data = tmp_path / "cifar10.npz"
    np.savez(data, x=images, y=labels, test_x=images[:500], test_y=labels[:500])
    command = [sys.executable, str(FOLDER / "train.py"), "--data", str(data)]
    command += ["--network", network]
    command += ["--method", method, "--growth", growth, "--global-batch", "1280"]
    found = subprocess.run(
        [*command, "--rate", "0.1", "--epochs", "3"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout.splitlines()[-1])
    assert result["by_epoch"]["updates"] == updates
    assert len(result["by_epoch"]["accuracy"]) == 3
