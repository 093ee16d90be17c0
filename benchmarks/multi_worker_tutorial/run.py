"""Runs TensorFlow's multi-worker Keras tutorial with both strategies.

python benchmarks/multi_worker_tutorial/run.py
"""

import datetime
import importlib.metadata
import json
import pathlib
import platform
import re
import subprocess

HERE = pathlib.Path(__file__).parent
COMMAND = "python benchmarks/multi_worker_tutorial/run.py"


def outcome(strategy):
    """Returns the outcome of `fit` on two workers."""
    done = subprocess.run(
        ["fastnet", "run", "--workers", "2", str(HERE / "tutorial.py"), strategy],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    code, text = done.returncode, done.stdout
    accuracies = re.findall(r"accuracy: (\d\.\d+)", text)
    errors = re.findall(r"\w+Error: .*", text)
    return {
        "exit_code": code,
        "training_accuracy": float(accuracies[-1]) if code == 0 else None,
        "error": None if code == 0 else errors[0][:200],
    }


def main():
    """Writes `result.json` beside this script."""
    result = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "command": COMMAND,
            "workers": 2,
            "python": platform.python_version(),
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "keras-fastnet")
            },
        },
        "results": {
            "MultiWorkerMirroredStrategy": outcome("stock"),
            "TorusStrategy": outcome("torus"),
        },
    }
    text = json.dumps(result, indent=2)
    (HERE / "result.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
