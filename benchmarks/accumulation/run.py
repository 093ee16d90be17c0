"""Measures examples/s and bytes sent with 1, 4 and 16 micro-batches per update.

python benchmarks/accumulation/run.py
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import statistics
import sys
import tempfile

from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.worker_environment import available_cpus, processor_name

HERE = pathlib.Path(__file__).parent
MICRO_BATCHES = 32
CONFIGURATIONS = (
    ("LargeBatchOptimizer", "fastnet", 1),
    ("LargeBatchOptimizer", "fastnet", 4),
    ("LargeBatchOptimizer with GradientNoise", "noise", 4),
    ("LargeBatchOptimizer", "fastnet", 16),
    ("Keras's gradient_accumulation_steps", "keras", 4),
    ("Keras's gradient_accumulation_steps", "keras", 16),
)


def measure(kind: str, accumulation: int, batch_size: int) -> dict:
    """Runs two workers once and returns what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "result.json"
        options = {
            "--kind": kind,
            "--accumulation": accumulation,
            "--batch-size": batch_size,
            "--updates": MICRO_BATCHES // accumulation,
            "--output": output,
        }
        words = [str(word) for option in options.items() for word in option]
        command = [str(HERE / "worker.py"), *words]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        if launcher.run(2, command, environment=environment) != 0:
            sys.exit("The benchmark failed.")
        return json.loads(output.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8, help="of one worker")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    arguments = parser.parse_args()
    rounds = []
    for number in range(arguments.rounds):
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
        rounds.append(
            [
                measure(kind, accumulation, arguments.batch_size)
                for _, kind, accumulation in CONFIGURATIONS
            ]
        )
    rows = []
    for index, (name, _, accumulation) in enumerate(CONFIGURATIONS):
        found = [turn[index] for turn in rounds]
        # Within a round, so that background noise affects all equally.
        over_first = [
            turn[index]["examples_per_second"] / turn[0]["examples_per_second"]
            for turn in rounds
        ]
        rows.append(
            {
                "optimizer": name,
                "accumulation_steps": accumulation,
                "over_one_micro_batch": round(statistics.median(over_first), 3),
                **{
                    key: round(statistics.median(each[key] for each in found), 1)
                    for key in found[0]
                },
            }
        )
    result = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python", *sys.argv]),
            "processor": f"{processor_name()}, {available_cpus()} cores",
            "model": "ResNet-50, 25,583,592 parameters, 102.3 MB of gradients, 64x64",
            "rounds": arguments.rounds,
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "keras-fastnet")
            },
        },
        "results": rows,
        "rounds": rounds,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print("| optimizer | micro-batches | images/s | over one | MB sent an update |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['optimizer']} | {row['accumulation_steps']} | "
            f"{row['examples_per_second']:.1f} | {row['over_one_micro_batch']:.2f} | "
            f"{row['megabytes_per_update']:.0f} |"
        )


if __name__ == "__main__":
    main()
