"""Weights & Biases and MLflow on the chief of two workers, offline, as documented."""

import json
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs" / "torus_strategy.md"

SCRIPT = """
import json, os, sys
import keras
import numpy as np
import keras_fastnet as fastnet
{imports}

os.chdir(sys.argv[1])
strategy = fastnet.TorusStrategy()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
if strategy.rank == 0:
    {begin}
{line}
callbacks.append(fastnet.callbacks.ThroughputMonitor())
x = np.linspace(-1, 1, 64)[:, None]
history = model.fit(x, 2 * x, batch_size=16, epochs=3, callbacks=callbacks).history
if strategy.rank == 0:
    with open(sys.argv[1] + "/result.json", "w") as file:
        json.dump({{"history": history, "logged": {logged}}}, file)
"""

WANDB = {
    "imports": "import wandb\nfrom wandb.integration.keras import WandbMetricsLogger",
    "begin": 'wandb.init(project="p", dir=sys.argv[1], mode="offline")',
    "logger": "WandbMetricsLogger()",
    "logged": '{name: wandb.run.summary["epoch/" + name] for name in history}',
}
MLFLOW = {
    "imports": "import mlflow\nfrom mlflow.keras import MlflowCallback",
    "begin": 'mlflow.set_tracking_uri("sqlite:///" + sys.argv[1] + "/runs.db"); '
    "mlflow.start_run()",
    "logger": "MlflowCallback()",
    "logged": "mlflow.get_run(mlflow.active_run().info.run_id).data.metrics",
}


def documented_line(logger):
    """Returns the line of the documentation, with another logger."""
    line = re.search(r"^callbacks = \[(.*)\] if .* else \[\]$", DOCS.read_text(), re.M)
    return line[0].replace(line[1], logger)


@pytest.mark.parametrize(("package", "tracker"), [("wandb", WANDB), ("mlflow", MLFLOW)])
def test_tracker_of_the_chief_has_one_run_with_all_values(
    fastnet, tmp_path, package, tracker
):
    pytest.importorskip(package)
    script = tmp_path / "train.py"
    line = documented_line(tracker["logger"])
    script.write_text(SCRIPT.format(line=line, **tracker))
    done = fastnet("run", "--workers", 2, script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"loss", "examples_per_second"} <= set(result["history"])
    for name, values in result["history"].items():
        assert result["logged"][name] == pytest.approx(values[-1])
    if package == "wandb":
        assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1
