"""Compares peak memory of a global batch of 32,768 with that of one micro-batch.

python benchmarks/large_batch_memory/run.py
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.worker_environment import available_cpus, processor_name

HERE = pathlib.Path(__file__).parent
# Of one micro-batch each; by then memory has stopped growing.
STEPS = 64


def peak_megabytes(
    workers: int, global_batch: int, micro_batch: int, steps: int, plain: bool = False
) -> float:
    """Returns the largest peak of all workers."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--global-batch": global_batch,
            "--micro-batch": micro_batch,
            "--steps": steps,
            "--plain": int(plain),
            "--folder": folder,
        }
        words = [str(word) for option in options.items() for word in option]
        command = [str(HERE / "worker.py"), *words]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        if launcher.run(workers, command, environment=environment) != 0:
            sys.exit("The benchmark failed.")
        found = [int(path.read_text()) for path in pathlib.Path(folder).iterdir()]
    return round(max(found) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--global-batch", type=int, default=32_768)
    parser.add_argument("--micro-batch", type=int, default=128, help="of all workers")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    arguments = parser.parse_args()
    micro, whole = arguments.micro_batch, arguments.global_batch
    rows = []
    for workers in arguments.workers:
        plain = peak_megabytes(workers, micro, micro, STEPS, plain=True)
        one = peak_megabytes(workers, micro, micro, STEPS)
        large = peak_megabytes(workers, whole, micro, whole // micro)
        rows.append(
            {
                "workers": workers,
                "lars_alone_mb": plain,
                "one_micro_batch_mb": one,
                "large_batch_mb": large,
                "over_one_micro_batch": round(large / one, 3),
                "over_lars_alone": round(large / plain, 3),
            }
        )
        print(rows[-1], flush=True)
    result = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python", *sys.argv]),
            "processor": f"{processor_name()}, {available_cpus()} cores",
            "model": "ResNet-50, 25,583,592 parameters, 32x32",
            "global_batch": whole,
            "micro_batch": micro,
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "keras-fastnet")
            },
        },
        "results": rows,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
