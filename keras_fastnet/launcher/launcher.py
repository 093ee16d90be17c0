"""`run`, which runs a Python program in several local TensorFlow workers."""

import dataclasses
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from keras_fastnet.arguments import checked_integer
from keras_fastnet.cluster.ports import reserved_ports
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.hosts import FIRST_PORT, Host, addresses_of, first_rank
from keras_fastnet.launcher.machine import available_cpus, visible_gpus
from keras_fastnet.launcher.mpiexec import can_start_ranks
from keras_fastnet.launcher.python_command import interpreter_command
from keras_fastnet.launcher.start import Start
from keras_fastnet.launcher.supervisor import Signals
from keras_fastnet.launcher.worker_environment import (
    cluster_configuration,
    worker_environments,
)

# Until ports and memory are free.
_PAUSE_SECONDS = 1.0

Transport = Literal["auto", "tensorflow", "mpi"]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the workers of this machine run.

    Attributes:
        port: The port of the first worker; the next one has the next port. Defaults to
            `None`: any free ports, or `FIRST_PORT` with `hosts`.
        threads_per_worker: The size of each of a worker's thread pools. Defaults
            to `None`: the CPUs of this process divided by the number of workers.
        gpus_per_worker: GPUs for each worker. Defaults to `None`: the visible GPUs
            divided by the number of workers.
        hosts: All machines of the cluster, on each of which `run` is called. Defaults
            to none: this machine is the only one.
        node_rank: The number of this machine in `hosts`. Defaults to `0`.
    """

    port: int | None = None
    threads_per_worker: int | None = None
    gpus_per_worker: int | None = None
    hosts: Sequence[Host] = ()
    node_rank: int = 0

    def __post_init__(self) -> None:
        if self.threads_per_worker is not None:
            checked_integer("threads_per_worker", self.threads_per_worker, at_least=1)
        if self.gpus_per_worker is not None:
            checked_integer("gpus_per_worker", self.gpus_per_worker, at_least=0)


def run(
    workers: int,
    command: Sequence[str],
    *,
    placement: Placement = Placement(),
    transport: Transport = "auto",
    max_restarts: int = 0,
    log_dir: str | os.PathLike[str] | None = None,
    independent: bool = False,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Runs a Python program in local workers and waits until all have ended.

    Rank 0 writes to stdout and stderr of this process, as if it ran alone. The
    launcher's own messages go to `sys.stderr`.

    Args:
        workers: The number of workers on this machine, at least 1.
        command: The words that follow `python`: a script and its arguments, or `-m`,
            a module and its arguments.
        placement: Ports, threads, GPUs and machines. Defaults to an equal division of
            this machine.
        transport: `"mpi"`, whether the workers are also ranks of an MPI world, over
            which `TorusStrategy` then reduces; `"tensorflow"`, whether they are not.
            Defaults to `"auto"`: they are on CPUs of one machine, if the wheels of
            mpi4py and MPICH are installed.
        max_restarts: How many times all workers are started again after a failure.
            Defaults to `0`.
        log_dir: A directory for the files `rank-1.log` and so on, which receive the
            output of every worker but rank 0. Defaults to `None`.
        independent: Whether each worker may train a separate model, without a
            strategy. Defaults to `False`.
        environment: The variables that the workers inherit. Defaults to `os.environ`.

    Returns:
        0 if all workers succeed; otherwise the exit code of the worker that failed
        first in the last start, or 128 plus the number of the signal that killed it. If
        the launcher itself gets a signal, 128 plus its number.

    Raises:
        UsageError: If the workers cannot be started. None was started then.
        ValueError: If a number is out of range.
    """
    checked_integer("max_restarts", max_restarts, at_least=0)
    environment = os.environ if environment is None else environment
    words = interpreter_command(command)
    signals = Signals()
    with ExitStack() as stack:
        variables, mpi = stack.enter_context(
            _planned(workers, placement, transport, independent, environment)
        )
        temporary = tempfile.TemporaryDirectory(prefix="fastnet-")
        start = Start(
            words=words,
            environments=[{**environment, **worker} for worker in variables],
            first_rank=first_rank(placement.hosts, placement.node_rank),
            folder=Path(stack.enter_context(temporary)),
            log_dir=None if log_dir is None else _made(Path(log_dir)),
            mpi=mpi,
            signals=signals,
        )
        for index in range(1, workers):
            start.output(index).unlink(missing_ok=True)
        stack.enter_context(signals.watched())
        return _start_repeatedly(start, max_restarts, signals)


def describe(
    workers: int,
    command: Sequence[str],
    *,
    placement: Placement = Placement(),
    transport: Transport = "auto",
    independent: bool = False,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Returns what `run` would start, in the shell's syntax, and starts nothing.

    Args:
        workers: See `run`, as for all other arguments.
        command: The words that follow `python`.
        placement: Ports, threads, GPUs and machines.
        transport: Whether the workers are ranks of MPI.
        independent: Whether each worker may train a separate model.
        environment: The variables that the workers inherit.

    Raises:
        UsageError: If the workers could not be started.
    """
    environment = os.environ if environment is None else environment
    words = interpreter_command(command)
    first = first_rank(placement.hosts, placement.node_rank)
    planned = _planned(workers, placement, transport, independent, environment)
    with planned as (variables, mpi):
        parts = ["# plus the variables that `mpiexec` sets\n"] if mpi else []
        for rank, worker in enumerate(variables, first):
            parts.append(f"# worker {rank}\n")
            parts += [f"{key}={shlex.quote(text)} \\\n" for key, text in worker.items()]
            parts.append(f"{shlex.join(words)}\n")
    return "".join(parts)


@contextmanager
def _planned(
    workers: int,
    placement: Placement,
    transport: Transport,
    independent: bool,
    environment: Mapping[str, str],
) -> Iterator[tuple[list[dict[str, str]], bool]]:
    """Reserves the ports, and plans the start.

    Yields:
        The variables to add for each worker of this machine, and whether the workers
        are ranks of MPI.
    """
    checked_integer("workers", workers, at_least=1)
    cluster = environment.get("TF_CONFIG")
    if cluster:
        shown = cluster if len(cluster) <= 80 else f"{cluster[:77]}..."
        raise UsageError(
            "`fastnet run` starts local workers, so TF_CONFIG must not be set. "
            f"Received: TF_CONFIG={shown}. If a cluster manager sets it, run "
            "`python script.py` instead of `fastnet run`; otherwise `unset TF_CONFIG`."
        )
    gpus = visible_gpus(environment)
    mpi = transport == "mpi"
    if transport == "auto" and workers > 1 and not placement.hosts and not independent:
        on_cpus = not gpus or placement.gpus_per_worker == 0
        mpi = on_cpus and can_start_ranks(environment)
    port = placement.port
    if placement.hosts and port is None:
        port = FIRST_PORT
    with reserved_ports(workers, port) as ports:
        variables = worker_environments(
            ports,
            environment,
            cpus=available_cpus(),
            gpus=gpus,
            threads_per_worker=placement.threads_per_worker,
            gpus_per_worker=placement.gpus_per_worker,
            independent=independent,
        )
        if placement.hosts:
            addresses = addresses_of(placement.hosts, ports[0])
            first = first_rank(placement.hosts, placement.node_rank)
            for rank, worker in enumerate(variables, first):
                worker["TF_CONFIG"] = cluster_configuration(addresses, rank)
        yield variables, mpi


def _start_repeatedly(start: Start, max_restarts: int, signals: Signals) -> int:
    """Starts all workers until they succeed or must not be started again."""
    seen = set()
    restarts = 0
    while True:
        failure = start.run()
        if signals.received:
            return 128 + signals.received[0]
        if failure is None:
            return 0
        _say(*start.message(failure))
        same = failure.repeatable
        if restarts == max_restarts:
            return failure.launch_code
        if same is not None and same in seen:
            _say(f"fastnet: not restarted: {failure.repetition()}")
            return failure.launch_code
        seen.add(same)
        restarts += 1
        _say(f"fastnet: restart {restarts} of {max_restarts}")
        signals.pause(_PAUSE_SECONDS)


def _made(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "--log-dir must be a writable directory, or one that can be created. "
            f"Received: {path} ({error}). Choose another directory."
        ) from error
    return path


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
