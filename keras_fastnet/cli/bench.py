"""`fastnet bench`: how long all-reduces take on this machine or cluster."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_fastnet.cluster.environment import in_a_cluster, scheduler_ranks
from keras_fastnet.cluster.mpi import mpi_rank
from keras_fastnet.collectives.cost_model import WIRE_BYTES
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.machine import visible_gpus
from keras_fastnet.launcher.mpiexec import add_transport
from keras_fastnet.scaling.applications import application_named
from keras_fastnet.scaling.bench_options import (
    DEFAULT_SIZES,
    BenchOptions,
    check_output,
    check_ranks,
    options_of,
)
from keras_fastnet.scaling.bench_report import as_text, write

_DESCRIPTION = """\
Time how long it takes to sum a vector over all ranks: with TensorFlow's own
all-reduce, one flat ring, the torus and the gather of each grid, and with what
TorusStrategy would choose. With --model, also a training step, alone and in the
cluster. Prints a table and writes a file for `fastnet plan --bench`.
"""

_EPILOG = """\
examples:
  fastnet bench --workers 4
      four workers on this machine, vectors of 4 KiB to 16 MiB
  fastnet bench --workers 8 --grid 2x4 --grid 4x2 --sizes 64KiB,1MiB,100MB
      which of two grids is the better one
  fastnet bench --workers 4 --model ResNet50 --batch 8 --image-size 64
      the efficiency of training, too
  TF_CONFIG='{…}' fastnet bench
      on each machine of a cluster; rank 0 prints and writes
  mpiexec -n 16 fastnet bench
      the same on a cluster that has MPI
  fastnet plan --ranks 64 --hosts 8 --model ResNet50 --bench fastnet-bench.json
      what the measured prices mean for a larger cluster

reading the table: milliseconds, the median of all rounds; * marks the fastest of a
size; "best/ring" is its time divided by the flat ring's. Run it on an idle machine.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="time all-reduces by size, flat ring against torus",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="start N workers on this machine (default: take part in the cluster of "
        "TF_CONFIG)",
    )
    parser.add_argument(
        "--sizes",
        default=DEFAULT_SIZES,
        metavar="LIST",
        help="bytes of the vectors, such as 4KiB,1MiB,100MB (default: %(default)s)",
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="RxC",
        help="a grid of R rows and C columns; may be repeated (default: the grid of "
        'TorusStrategy(grid="auto") and the squarest one)',
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=7,
        metavar="K",
        help="rounds, each with every contestant (default: %(default)d)",
    )
    parser.add_argument(
        "--wire-dtype",
        choices=WIRE_BYTES,
        default="float32",
        help="what TorusStrategy's contestants round float32 to while it travels "
        "(default: %(default)s, no rounding)",
    )
    add_transport(parser)
    parser.add_argument(
        "--output",
        default="fastnet-bench.json",
        metavar="FILE",
        help="the file to write (default: %(default)s)",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--model",
        metavar="NAME",
        help="one of Keras's applications, such as ResNet50 (default: no training)",
    )
    training.add_argument(
        "--batch",
        type=int,
        default=8,
        metavar="B",
        help="images of one replica in a step (default: %(default)d)",
    )
    training.add_argument(
        "--image-size",
        type=int,
        default=64,
        metavar="S",
        help="height and width of an image (default: %(default)d)",
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet bench` and returns its exit code."""
    options = options_of(arguments)
    cluster = os.environ.get("TF_CONFIG")
    if arguments.workers is None and cluster is None and not in_a_cluster():
        raise UsageError(
            "There must be workers to measure with. Received: neither --workers nor "
            "TF_CONFIG. Pass `--workers 4` for four on this machine; on a cluster, "
            "start `fastnet bench` with TF_CONFIG on every machine, by `mpiexec` or by "
            "`srun`."
        )
    if arguments.workers is None:
        return _take_part(options)
    if cluster is not None:
        raise UsageError(
            "--workers makes a cluster of its own, so TF_CONFIG must not be set. "
            "Received: both. Leave out --workers to measure the cluster of TF_CONFIG, "
            "or `unset TF_CONFIG`."
        )
    check_output(options.output)
    if not visible_gpus(os.environ):
        # With GPUs a worker may have several ranks: it counts them itself.
        check_ranks(arguments.workers, options.grids)
    if options.model is not None:
        application_named(options.model, _names_of_models())
    return _launch(arguments.workers, options)


def _launch(workers: int, options: BenchOptions) -> int:
    with tempfile.TemporaryDirectory() as folder:
        # The user's file is written here, when all workers have succeeded.
        found = Path(folder) / "found.json"
        command = ["-m", "keras_fastnet.scaling.bench_worker", str(found)]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        code = launcher.run(
            workers,
            [*command, options.to_json()],
            environment=environment,
            mpi=options.transport == "mpi",
        )
        if code == 0:
            document = json.loads(found.read_text(encoding="utf-8"))
            _finish(document, options.output)
        return code


def _take_part(options: BenchOptions) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_fastnet.cluster.cluster_spec import read_tf_config
    from keras_fastnet.errors import ClusterError
    from keras_fastnet.scaling.bench_worker import measure

    try:
        cluster = read_tf_config()
        ranks = [
            None if cluster is None else cluster.rank,
            mpi_rank(os.environ),
            *(stated.rank for stated in scheduler_ranks(os.environ)),
        ]
        if next((rank for rank in ranks if rank is not None), None) == 0:
            check_output(options.output)
        document = measure(options)
    except ClusterError as error:
        raise UsageError(str(error)) from error
    if document is not None:
        _finish(document, options.output)
    return 0


def _finish(document: dict, output: str) -> None:
    write(document, output)
    print(f"\n{as_text(document)}\n\nwritten: {output}", flush=True)


def _names_of_models() -> list[str]:
    # In a process of its own: TensorFlow is talkative, and would stay in memory.
    program = (
        "from keras_fastnet._keras.keras_api import keras\n"
        "print(*dir(keras.applications))"
    )
    command = [sys.executable, "-c", program]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    return listing.stdout.split()
