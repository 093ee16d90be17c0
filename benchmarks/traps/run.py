"""Runs the scenarios of tests/traps with stock Keras and with keras_fastnet.

python -m benchmarks.traps.run
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

from keras_fastnet.launcher import launcher

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def on_two_devices(kit):
    """Returns the observation of each scenario, and whether it is right."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.traps", kit],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


def on_two_workers_of_stock():
    """Returns the same for stock Keras in the scenarios on two workers."""
    from tests.traps import scenarios

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scenarios.write_shards(folder)
        if launcher.run(2, ["-m", "tests.traps.stock_workers", name]):
            raise SystemExit("The two workers failed; their last lines are above.")
        ranks = [json.loads((folder / f"rank-{r}.json").read_text()) for r in (0, 1)]
    return {
        scenario.__name__: scenarios.judged(
            scenario.__name__, [rank[scenario.__name__] for rank in ranks]
        )
        for scenario in scenarios.ON_TWO_WORKERS
    }


def launched(independent):
    """Returns the same for a script without a strategy.

    Args:
        independent: Whether the launcher lets it train, as other launchers do.
    """
    from tests.traps import scenarios

    with tempfile.TemporaryDirectory() as name:
        command = [scenarios.LONE_SCRIPT, name]
        allowed = {"FASTNET_INDEPENDENT": "1"} if independent else {}
        code = launcher.run(2, command, environment={**os.environ, **allowed})
        seen = scenarios.without_strategy(code, pathlib.Path(name))
    return {scenarios.without_strategy.__name__: seen}


def main():
    """Writes `result.json` beside this script, and prints a table."""
    stock = {
        **on_two_devices("stock"),
        **on_two_workers_of_stock(),
        **launched(independent=True),
    }
    ours = {**on_two_devices("ours"), **launched(independent=False)}
    result = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "command": "python -m benchmarks.traps.run",
            "python": platform.python_version(),
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "keras-fastnet")
            },
        },
        "stock": stock,
        "keras_fastnet": ours,
    }
    (HERE / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, (seen, right) in stock.items():
        print(f"| {name} | {seen}{'' if right else ': wrong'} | {ours.get(name)} |")


if __name__ == "__main__":
    main()
