"""Compares ways to train on two processes with one process, where batches are uneven.

    python benchmarks/alternatives/run.py --jax-python PATH --torch-python PATH

PATH is a Python that has Keras, and JAX and TensorFlow, or PyTorch.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from keras_fastnet.cluster.ports import reserved_ports
from keras_fastnet.launcher.worker_environment import cluster_configuration

HERE = pathlib.Path(__file__).parent


def trained(way: str, python: str, processes: int, words: list[str]) -> list[dict]:
    """Returns what each process of a training has written."""
    with tempfile.TemporaryDirectory() as folder, reserved_ports(processes) as ports:
        outputs = [pathlib.Path(folder) / f"{rank}.json" for rank in range(processes)]
        running = []
        for rank, output in enumerate(outputs):
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            if way == "torus" and processes > 1:
                addresses = [f"127.0.0.1:{port}" for port in ports]
                environment["TF_CONFIG"] = cluster_configuration(addresses, rank)
            numbers = map(str, (rank, processes, ports[0]))
            command = [python, HERE / "train.py", way, *numbers, output, *words]
            running.append(subprocess.Popen(command, env=environment))
        codes = [process.wait(300) for process in running]
        if any(codes):
            sys.exit(f"A process of {way} failed: its error is above.")
        return [json.loads(output.read_text()) for output in outputs]


def difference(one: dict, other: dict) -> float:
    """Returns the difference of the weights, divided by their norm."""
    flat = [
        np.concatenate([np.ravel(weight) for weight in result["weights"]])
        for result in (one, other)
    ]
    return float(np.linalg.norm(flat[0] - flat[1]) / np.linalg.norm(flat[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax-python", metavar="PATH")
    parser.add_argument("--torch-python", metavar="PATH")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    args = parser.parse_args()
    ways = {"torus": sys.executable, "jax": args.jax_python, "torch": args.torch_python}
    rows = []
    print("| way | batches | weights differ by | losses of each process |")
    print("| --- | --- | ---: | --- |")
    for way, python in ways.items():
        for words in ([], ["--even"]) if python else ():
            (one,) = trained(way, python, 1, words)
            two = trained(way, python, 2, words)
            row = {
                "way": way,
                "batches": "even" if words else "uneven",
                "differs_by": max(difference(one, each) for each in two),
                "losses": [each["losses"] for each in two],
                "losses_of_one_process": one["losses"],
                "keras": one["keras"],
            }
            rows.append(row)
            last = ", ".join(f"{each[-1]:.6g}" for each in row["losses"] if each)
            batches = f"{row['batches']} | {row['differs_by']:.1e} | {last}"
            print(f"| {way} | {batches} |", flush=True)
    result = {"date": datetime.date.today().isoformat(), "results": rows}
    args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
