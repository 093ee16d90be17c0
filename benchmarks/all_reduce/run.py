"""Times sums over 4, 9 and 16 local ranks with `fastnet bench`, and tests the plan.

python benchmarks/all_reduce/run.py
python benchmarks/all_reduce/run.py --measured    # only the tables and the predictions

Each number of ranks has a file of its own beside this script, `ranks-4.json` and so
on, which `fastnet plan --bench` reads.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from keras_fastnet.cli.bench_report import as_text
from keras_fastnet.collectives.cost_model import Prices, all_reduce_seconds
from keras_fastnet.collectives.price_fit import (
    Measurement,
    fit_prices,
    read_measurements,
)

HERE = pathlib.Path(__file__).parent
SIZES = "4KiB,64KiB,1MiB,16MiB,100MB"
RANKS = (4, 9, 16)


def file_of(ranks: int) -> pathlib.Path:
    """Returns the file with what was measured with so many ranks."""
    return HERE / f"ranks-{ranks}.json"


def measure(ranks: int, sizes: str, repeats: int) -> None:
    """Writes the file of so many ranks."""
    command = [sys.executable, "-m", "keras_fastnet.cli", "bench"]
    command += ["--workers", str(ranks), "--sizes", sizes]
    command += ["--repeats", str(repeats), "--output", str(file_of(ranks))]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"The benchmark failed with {ranks} ranks.")


def error(measured: Measurement, prices: Prices) -> float:
    """Returns how far the prediction is off, relative to what was measured."""
    predicted = all_reduce_seconds(
        measured.algorithm,
        measured.grid,
        measured.topology,
        prices,
        measured.nbytes,
        measured.buckets,
    )
    return predicted / measured.seconds - 1


def prediction(learned_from: list[int], asked: int) -> str:
    """Returns a row that says how well one number of ranks is predicted."""
    learned = [m for ranks in learned_from for m in read_measurements(file_of(ranks))]
    prices = fit_prices(learned)
    errors = [error(m, prices) for m in read_measurements(file_of(asked))]
    sizes = [abs(e) for e in errors]
    within = sum(size <= 0.25 for size in sizes)
    return (
        f"| {asked} | {', '.join(map(str, learned_from))} | "
        f"{statistics.median(sizes):.0%} | {min(errors):+.0%} to {max(errors):+.0%} | "
        f"{within} of {len(errors)} |"
    )


def over_ring(document: dict) -> str:
    """Returns the time of "auto" over that of both rings, by size."""
    seconds = {
        (row["bytes"], row["algorithm"]): row["seconds"]
        for row in document["all_reduce"]
    }
    cells = [
        f"{size:,} B: {seconds[size, 'auto'] / seconds[size, 'ring']:.2f}, "
        f"{seconds[size, 'auto'] / seconds[size, 'tensorflow']:.2f}"
        for size in sorted({size for size, _ in seconds})
    ]
    return "auto over our ring, over TensorFlow's: " + "; ".join(cells)


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=list(RANKS))
    parser.add_argument("--sizes", default=SIZES, help="as of `fastnet bench`")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--measured", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    for ranks in arguments.ranks:
        if not arguments.measured:
            measure(ranks, arguments.sizes, arguments.repeats)
        document = json.loads(file_of(ranks).read_text())
        print(as_text(document), over_ring(document), sep="\n", end="\n\n")
    print("| predicted ranks | prices from | median error | errors | within 25 % |")
    print("| --- | --- | --- | --- | --- |")
    for ranks in arguments.ranks:
        print(prediction([ranks], ranks))
        print(prediction(arguments.ranks, ranks))
        others = [other for other in arguments.ranks if other != ranks]
        if others:
            print(prediction(others, ranks))


if __name__ == "__main__":
    main()
