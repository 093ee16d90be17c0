"""`fastnet bench`: times all-reduces on this machine or cluster."""

import argparse
import os
from pathlib import Path

from keras_fastnet.cli.option_types import (
    add_transport,
    add_workers,
    byte_sizes,
    grid,
    integer,
)
from keras_fastnet.cluster.environment import in_a_cluster
from keras_fastnet.collectives.cost_model import WIRE_BYTES
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.text import size_text

DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB"

_DESCRIPTION = """\
Time how long it takes to sum a vector over all ranks: with TensorFlow's own
all-reduce, one flat ring, the torus and the gather of each grid, and the algorithm that
TorusStrategy would choose. Prints a table and writes a file for `fastnet plan --bench`.
"""

_EPILOG = """\
examples:
  fastnet bench --workers 4
      four workers on this machine, vectors of 4 KiB to 16 MiB
  fastnet bench --workers 8 --grid 2x4 --grid 4x2 --sizes 64KiB,1MiB,100MB
      compare two grids
  TF_CONFIG='{…}' fastnet bench
      on each machine of a cluster; rank 0 prints and writes
  mpiexec -n 16 fastnet bench
      the same on a cluster that has MPI
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --bench fastnet-bench.json
      predict a larger cluster from the measured costs

reading the table: milliseconds, the median of all rounds; * marks the fastest algorithm
for a size; "best/ring" is its time divided by the flat ring's. Run it on an idle
machine.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="time all-reduces by size, flat ring against torus",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_workers(
        parser,
        "start N workers on this machine (default: take part in the cluster of "
        "TF_CONFIG)",
    )
    parser.add_argument(
        "--sizes",
        type=byte_sizes,
        default=DEFAULT_SIZES,
        metavar="LIST",
        help="bytes of the vectors, such as 4KiB,1MiB,100MB (default: %(default)s)",
    )
    parser.add_argument(
        "--grid",
        type=grid,
        action="append",
        default=[],
        metavar="RxC",
        help="a grid of R rows and C columns; may be repeated (default: the grid of "
        'TorusStrategy(grid="auto") and the squarest one)',
    )
    parser.add_argument(
        "--repeats",
        type=integer(at_least=1, example=7),
        default=7,
        metavar="K",
        help="number of rounds; each runs every algorithm (default: %(default)d)",
    )
    parser.add_argument(
        "--wire-dtype",
        choices=WIRE_BYTES,
        default="float32",
        help="dtype that TorusStrategy's algorithms send float32 as "
        "(default: %(default)s, no rounding)",
    )
    add_transport(parser)
    parser.add_argument(
        "--output",
        default="fastnet-bench.json",
        metavar="FILE",
        help="the file to write (default: %(default)s)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet bench` and returns its exit code."""
    output = Path(arguments.output)
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        # Before time is spent.
        raise UsageError(
            "--output must be a file in a folder that can be written. Received: "
            f"{output}. Choose another path."
        )
    if arguments.workers is not None:
        if in_a_cluster():
            raise UsageError(
                "--workers starts local workers, so TF_CONFIG must not be set. "
                "Received: both. Leave out --workers to measure the cluster of "
                "TF_CONFIG, or `unset TF_CONFIG`."
            )
        return launcher.run(
            arguments.workers,
            ["-m", "keras_fastnet.cli", *_words(arguments)],
            environment={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            transport=arguments.transport,
        )
    if not in_a_cluster():
        raise UsageError(
            "There must be workers to measure with. Received: neither --workers nor "
            "TF_CONFIG. Pass `--workers 4` to start four here; on a cluster, "
            "start `fastnet bench` on every machine, with TF_CONFIG, `mpiexec` or "
            "`srun`."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Imports TensorFlow.
    from keras_fastnet.scaling import bench

    bench.measure(
        arguments.sizes,
        list(dict.fromkeys(arguments.grid)),
        rounds=arguments.repeats,
        wire_dtype=arguments.wire_dtype,
        output=arguments.output,
        command=" ".join(["fastnet", *_words(arguments)]),
    )
    return 0


def _words(arguments: argparse.Namespace) -> list[str]:
    """Returns the command of a worker: all options but `--workers`."""
    sizes = [size_text(n).replace(" ", "").replace(",", "") for n in arguments.sizes]
    words = ["bench", "--sizes", ",".join(sizes)]
    for each in arguments.grid:
        words += ["--grid", str(each)]
    for name in ("repeats", "wire_dtype", "transport", "output"):
        words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    return words
