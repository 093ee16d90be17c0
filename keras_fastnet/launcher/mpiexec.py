"""Places in an MPI world for workers that the launcher itself starts.

`mpiexec` starts one small process for each place, which hands it over: so the launcher
watches, shows and ends its workers in the same way with MPI and without.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from keras_fastnet.cluster.mpi import mpi4py_is_installed, mpi_rank
from keras_fastnet.errors import UsageError

_SHIM = str(Path(__file__).with_name("mpiexec_rank.py"))
_START_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class MpiRank:
    """What makes a process a rank of an MPI world.

    Attributes:
        variables: Environment variables.
        descriptors: File descriptors that it must inherit; `PMI_FD` names the first.
    """

    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    descriptors: tuple[int, ...] = ()


def add_transport(parser: argparse.ArgumentParser) -> None:
    """Adds the option that says what the launcher's workers reduce over.

    Args:
        parser: The command's.
    """
    parser.add_argument(
        "--transport",
        choices=("tensorflow", "mpi"),
        default="tensorflow",
        help="what carries gradients between TorusStrategy's workers: TensorFlow's "
        "collectives (gRPC, NCCL), or MPI, which is faster on CPUs (default: "
        "%(default)s)",
    )


def mpiexec() -> str | None:
    """Returns the path of `mpiexec`, that of this environment first."""
    own = Path(sys.executable).with_name("mpiexec")
    return str(own) if own.exists() else shutil.which("mpiexec")


def mpi_is_installed() -> bool:
    """Tells whether this environment can train over MPI."""
    return mpi4py_is_installed() and mpiexec() is not None


@contextlib.contextmanager
def mpi_ranks(workers: int) -> Iterator[list[MpiRank]]:
    """Asks `mpiexec` for places, which last until the context ends.

    Args:
        workers: How many.

    Yields:
        The places, by rank.

    Raises:
        UsageError: mpi4py or `mpiexec` is missing, or `mpiexec` fails.
    """
    command = mpiexec()
    if command is None or not mpi4py_is_installed():
        missing = "mpi4py" if command is not None else "mpiexec"
        raise UsageError(
            "--transport mpi needs mpi4py and mpiexec. Received: an environment "
            f'without {missing}. Run `pip install "keras-fastnet[mpi]"`, or leave '
            "--transport out."
        )
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fastnet-"))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(f"{folder}/line")
        listener.listen(workers)
        log = stack.enter_context(open(f"{folder}/log", "w+"))
        shim = (sys.executable, "-I", "-S", _SHIM, f"{folder}/line")
        process = stack.enter_context(
            _ended_with_context([command, "-n", str(workers), *shim], log)
        )
        places: dict[int, MpiRank] = {}
        while len(places) < workers:
            line = stack.enter_context(_accepted(listener, process, Path(log.name)))
            rank, place = _received(line)
            for descriptor in place.descriptors:
                stack.callback(os.close, descriptor)
            places[rank] = place
        yield [places[rank] for rank in range(workers)]


@contextlib.contextmanager
def _ended_with_context(command: list[str], log: IO[str]) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # Ctrl-C is the launcher's to deal with.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _accepted(
    listener: socket.socket, process: subprocess.Popen, log: Path
) -> socket.socket:
    end = time.monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while not selector.select(0.2):
            if process.poll() is not None or time.monotonic() > end:
                lines = log.read_text(errors="replace").strip() or "no message"
                raise UsageError(
                    "mpiexec must be able to start processes on this machine. "
                    f"Received from `{mpiexec()}`: {lines}"
                )
    return listener.accept()[0]


def _received(line: socket.socket) -> tuple[int, MpiRank]:
    header, descriptors, _, _ = socket.recv_fds(line, 8, 1)
    message = b""
    while len(message) < int.from_bytes(header, "big"):
        message += line.recv(1 << 16)
    theirs = json.loads(message)
    variables = {k: v for k, v in theirs.items() if os.environ.get(k) != v}
    rank = mpi_rank(theirs)
    if rank is None:
        raise UsageError(
            "mpiexec must tell its ranks their numbers as MPICH or Open MPI do. "
            f"Received: {mpiexec()}, which does not. Start the script with it "
            "directly: `mpiexec -n 4 python train.py`."
        )
    if descriptors:
        variables["PMI_FD"] = str(descriptors[0])
    return rank, MpiRank(variables, tuple(descriptors))
