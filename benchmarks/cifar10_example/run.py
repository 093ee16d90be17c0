"""Trains examples/cifar10.py on two workers, and times its epochs.

python benchmarks/cifar10_example/run.py --data-dir DIR    # 7 minutes on 2 cores

DIR holds CIFAR-10 as TFRecords in ImageNet's layout. An epoch is timed from the start
of its first step to the end of its validation, as Keras prints it.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import keras
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
SCRIPT = HERE.parents[1] / "examples" / "cifar10.py"
RESULT = HERE / "result.json"
# Keras's output at the end of an epoch: seconds, milliseconds a step, metrics.
EPOCH = re.compile(r"(\d+)/\1 \S+ (\d+)s (\d+)ms/step .*val_accuracy: ([\d.]+)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", metavar="DIR", required=True)
    args = parser.parse_args()
    fastnet = [sys.executable, "-m", "keras_fastnet.cli", "run", "--workers", "2"]
    begun = time.perf_counter()
    done = subprocess.run(
        [*fastnet, str(SCRIPT), "--data-dir", args.data_dir],
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")
    last = re.search(r"([\d,]+) updates, accuracy ([\d.]+)%", done.stdout)
    if last is None:
        raise RuntimeError(f"no result in:\n{done.stdout}")
    result = {
        "command": "fastnet run --workers 2 examples/cifar10.py --data-dir DIR",
        "conditions": f"{len(os.sched_getaffinity(0))} cores, TensorFlow "
        f"{tf.__version__}, Keras {keras.__version__}",
        "updates": int(last[1].replace(",", "")),
        "accuracy": round(float(last[2]) / 100, 4),
        "seconds": round(seconds),
        "epochs": [
            {"seconds": int(epoch[2]), "val_accuracy": float(epoch[4])}
            for epoch in EPOCH.finditer(done.stdout)
        ],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
