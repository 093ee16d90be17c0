"""Times input pipelines in one pinned process and in two workers with a core each.

python benchmarks/input/run.py
"""

import argparse
import datetime
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

import keras
import tensorflow as tf

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.input.pipelines import BATCH, PIPELINES, make_files  # noqa: E402
from benchmarks.input.worker import ONE, STEPS, ways  # noqa: E402


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def measured(name: str, way: str, files: pathlib.Path) -> list[float]:
    """Returns the seconds of a pipeline, those of the slower worker.

    By the clock and by the processor. Every measurement has processes of its own: the
    threads of earlier pipelines take time from later ones.
    """
    workers = 1 if way == ONE else 2
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    with tempfile.TemporaryDirectory() as folder:
        results = [pathlib.Path(folder, str(rank)) for rank in range(workers)]
        processes = []
        for rank, result in enumerate(results):
            environment = {
                **os.environ,
                "PYTHONPATH": str(HERE.parents[1]),
                "TF_CPP_MIN_LOG_LEVEL": "2",
            }
            if workers > 1:
                task = {"type": "worker", "index": rank}
                environment["TF_CONFIG"] = json.dumps(
                    {"cluster": {"worker": addresses}, "task": task}
                )
            module = [sys.executable, "-m", "benchmarks.input.worker", name, way]
            command = ["taskset", "-c", str(rank), *module, str(files), str(result)]
            processes.append(subprocess.Popen(command, env=environment))
        for process in processes:
            if process.wait(timeout=900):
                raise RuntimeError(f"A worker ended with {process.returncode}.")
        seconds = [json.loads(result.read_text()) for result in results]
    return [max(times) for times in zip(*seconds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    files = pathlib.Path(tempfile.gettempdir(), "keras_fastnet_input_3")
    make_files(files)
    rounds = []
    for number in range(arguments.rounds):
        rates = {}
        for name in PIPELINES:
            order = [ONE, *ways(name)]
            for way in order if number % 2 == 0 else reversed(order):
                count = BATCH[name] * STEPS[name]
                seconds = measured(name, way, files)
                rates[f"{name}, {way}"] = [count / each for each in seconds]
        rounds.append({"examples_per_second": rates, "load": os.getloadavg()[0]})
        print(rounds[-1], flush=True)
    result = {
        "date": datetime.date.today().isoformat(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "cores": os.cpu_count(),
        "load_before": load,
        "rounds": rounds,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))


def table(result: dict) -> str:
    """Returns the medians of a result, and the ratios taken within each round."""
    rows = [
        "| pipeline | way | per second | times one process | per second of "
        "processor | times one process |",
        "|---|---|---|---|---|---|",
    ]
    rates = [each["examples_per_second"] for each in result["rounds"]]
    for pipeline in PIPELINES:
        one = f"{pipeline}, {ONE}"
        for way in [ONE, *ways(pipeline)]:
            name = f"{pipeline}, {way}"
            cells = [pipeline, way]
            for clock in (0, 1):
                ratios = [each[name][clock] / each[one][clock] for each in rates]
                median = statistics.median(each[name][clock] for each in rates)
                spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
                cells += [f"{median:,.0f}", f"{statistics.median(ratios):.2f} {spread}"]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
