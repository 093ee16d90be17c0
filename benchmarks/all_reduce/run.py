"""Times sums over 4, 9 and 16 local ranks: ring, torus, gather and the choice.

python benchmarks/all_reduce/run.py
python benchmarks/all_reduce/run.py --ranks 4 --rounds 3
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile

from keras_fastnet.cli import launcher
from keras_fastnet.collectives.cost_model import Topology, all_reduce_seconds
from keras_fastnet.collectives.grid import Grid
from keras_fastnet.collectives.price_fit import Measurement, fit_prices

HERE = pathlib.Path(__file__).parent
SIZES = (4_096, 65_536, 1_048_576, 16_777_216, 100_000_000)
COLUMNS = ("tensorflow", "ring", "torus", "gather", "auto")
CORES = len(os.sched_getaffinity(0))


def measure(ranks: int, sizes: list[int], rounds: int) -> list[dict]:
    """Returns the times of all contestants with so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "times.json"
        words = [str(HERE / "worker.py"), "--rounds", rounds, "--output", output]
        words += ["--sizes", *sizes]
        code = launcher.run(ranks, [str(word) for word in words])
        if code != 0:
            sys.exit(f"The benchmark failed with {ranks} ranks.")
        return json.loads(output.read_text())


def measurements(ranks: int, rows: list[dict]) -> list[Measurement]:
    """Returns what the cost model has a prediction for."""
    return [
        Measurement(
            algorithm=row["algorithm"],
            grid=Grid(*row["grid"]),
            topology=Topology(hosts=1, ranks_per_host=ranks),
            nbytes=row["bytes"],
            seconds=row["seconds"],
            cores_per_host=CORES,
        )
        for row in rows
        if row["algorithm"] in ("ring", "torus", "gather")
    ]


def prediction_errors(fitted: list[Measurement], tested: list[Measurement]) -> dict:
    """Returns how far predictions are from the measured times, relative to them."""
    prices = fit_prices(fitted)
    errors = [
        abs(
            all_reduce_seconds(
                m.algorithm, m.grid, m.topology, prices, m.nbytes, m.cores_per_host
            )
            / m.seconds
            - 1
        )
        for m in tested
    ]
    return {
        "prices": dataclasses.asdict(prices),
        "median_error": round(statistics.median(errors), 3),
        "largest_error": round(max(errors), 3),
    }


def table(ranks: int, rows: list[dict]) -> str:
    """Returns milliseconds by size as a Markdown table."""
    lines = [
        f"| {ranks} ranks, bytes | {' | '.join(COLUMNS)} | auto / ring |",
        "| --- " * (len(COLUMNS) + 2) + "|",
    ]
    for size in sorted({row["bytes"] for row in rows}):
        times = {r["algorithm"]: r["seconds"] for r in rows if r["bytes"] == size}
        cells = [
            f"{1e3 * times[name]:.1f} ms" if name in times else "" for name in COLUMNS
        ]
        ratio = times["auto"] / times["ring"]
        lines.append(f"| {size:,} | {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Writes the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 9, 16])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    arguments = parser.parse_args()
    found = {
        ranks: measure(ranks, arguments.sizes, arguments.rounds)
        for ranks in arguments.ranks
    }
    usable = {ranks: measurements(ranks, rows) for ranks, rows in found.items()}
    result = {
        "conditions": {
            "date": datetime.date.today().isoformat(),
            "command": " ".join(["python", *sys.argv]),
            "cores": CORES,
            "rounds": arguments.rounds,
            "python": platform.python_version(),
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "keras-fastnet")
            },
        },
        "all_reduce": {str(ranks): rows for ranks, rows in found.items()},
        "prediction": {
            str(ranks): prediction_errors(usable[ranks], usable[ranks])
            for ranks in arguments.ranks
        },
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    for ranks, rows in found.items():
        print(table(ranks, rows), end="\n\n")
    for ranks, errors in result["prediction"].items():
        print(ranks, "ranks:", errors)


if __name__ == "__main__":
    main()
