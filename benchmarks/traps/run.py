"""Runs the scenarios with stock Keras and TensorFlow, for docs/traps.md.

    python -m benchmarks.traps.run

Writes `result.json` beside this script, and prints a table. The tests prove what
keras_fastnet does instead.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

from benchmarks.traps import scenarios
from keras_fastnet.launcher import launcher

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def on_two_devices():
    """Returns the observation of each scenario, and whether it is right."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.traps.two_devices"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


def on_two_workers():
    """Returns the same of the scenarios on two workers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scenarios.write_shards(folder)
        if launcher.run(2, ["-m", "benchmarks.traps.worker", name]):
            raise SystemExit("The two workers failed; their last lines are above.")
        ranks = [json.loads((folder / f"rank-{r}.json").read_text()) for r in (0, 1)]
    return {
        scenario.__name__: scenarios.judged(
            scenario.__name__, [rank[scenario.__name__] for rank in ranks]
        )
        for scenario in scenarios.ON_TWO_WORKERS
    }


def launched():
    """Returns the same for a script without a strategy.

    The launcher lets it train, as other launchers do.
    """
    with tempfile.TemporaryDirectory() as name:
        command = [scenarios.LONE_SCRIPT, name]
        environment = {**os.environ, "FASTNET_INDEPENDENT": "1"}
        code = launcher.run(2, command, environment=environment)
        seen = scenarios.without_strategy(code, pathlib.Path(name))
    return {scenarios.without_strategy.__name__: seen}


def main():
    """Writes `result.json` beside this script, and prints a table."""
    stock = {**on_two_devices(), **on_two_workers(), **launched()}
    result = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "command": "python -m benchmarks.traps.run",
            "python": platform.python_version(),
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras")
            },
        },
        "stock": stock,
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, (seen, right) in stock.items():
        print(f"| {name} | {seen}{'' if right else ': wrong'} |")


if __name__ == "__main__":
    main()
