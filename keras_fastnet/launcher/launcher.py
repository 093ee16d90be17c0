"""`run`, which runs a Python program in several local TensorFlow workers."""

import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TextIO

from keras_fastnet.arguments import check_integer
from keras_fastnet.cluster.ports import reserved_ports
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.machine import available_cpus, visible_gpus
from keras_fastnet.launcher.mpiexec import MpiRank, mpi_ranks
from keras_fastnet.launcher.output import Display, WorkerOutput
from keras_fastnet.launcher.python_command import check_command
from keras_fastnet.launcher.supervisor import Supervisor
from keras_fastnet.launcher.worker_environment import worker_environments
from keras_fastnet.launcher.worker_process import (
    WorkerProcess,
    describe_exit,
    interpreter_command,
)

# Our choice: time to close files, yet bearable after a Ctrl-C.
DEFAULT_GRACE_SECONDS = 5.0


def run(
    workers: int,
    command: Sequence[str],
    *,
    port: int | None = None,
    threads_per_worker: int | None = None,
    gpus_per_worker: int | None = None,
    all_output: bool = False,
    log_dir: str | os.PathLike[str] | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    dry_run: bool = False,
    mpi: bool = False,
    independent: bool = False,
    environment: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Runs a Python program in local workers and waits until all have ended.

    Args:
        workers: The number of workers, at least 1.
        command: What would follow `python`: a script and its arguments, or `-m`,
            a module and its arguments.
        port: The port of worker 0; worker r has `port + r`. Defaults to `None`,
            any free ports.
        threads_per_worker: The size of each of a worker's thread pools. Defaults
            to `None`: the CPUs of this process divided by `workers`.
        gpus_per_worker: GPUs for each worker. Defaults to `None`: the visible
            ones divided by `workers`.
        all_output: Shows the whole output of every worker, not only of rank 0.
            Defaults to `False`.
        log_dir: A directory for files `rank-0.log` and so on with everything that
            each worker writes. Defaults to none.
        grace_seconds: The time that workers have to end after SIGTERM before they
            are killed. Defaults to `5.0`.
        dry_run: Prints what would be started, and starts nothing. Defaults to
            `False`.
        mpi: Makes the workers ranks of an MPI world too. Defaults to `False`.
        independent: Lets the workers train models without a strategy, each its own.
            Defaults to `False`.
        environment: What the workers inherit. Defaults to `os.environ`.
        stdout: Receives the workers' stdout. Defaults to `sys.stdout`.
        stderr: Receives their stderr and the launcher's messages. Defaults to
            `sys.stderr`.

    Returns:
        0 when all workers succeed; otherwise the exit code of the worker that
        failed first, or 128 plus the number of the signal that killed it; 128 plus
        the number of the signal that the launcher itself received.

    Raises:
        UsageError: The launch is impossible. Nothing was started.
    """
    stdout = stdout or sys.stdout
    stderr = stderr or sys.stderr
    environment = os.environ if environment is None else environment
    check_integer("--workers", workers, 1)
    if threads_per_worker is not None:
        check_integer("--threads-per-worker", threads_per_worker, 1)
    if gpus_per_worker is not None:
        check_integer("--gpus-per-worker", gpus_per_worker, 0)
    _check_grace_seconds(grace_seconds)
    check_command(command)
    _check_no_cluster(environment)
    log_path = None if log_dir is None else Path(log_dir)

    with ExitStack() as stack:
        ports = stack.enter_context(reserved_ports(workers, port))
        variables = worker_environments(
            ports,
            environment,
            cpus=available_cpus(),
            gpus=visible_gpus(environment),
            threads_per_worker=threads_per_worker,
            gpus_per_worker=gpus_per_worker,
            independent=independent,
        )
        if log_path is not None:
            _check_log_directory(log_path)
        if dry_run:
            stdout.write(_describe(variables, command, mpi))
            stdout.flush()
            return 0
        places = [MpiRank()] * workers
        if mpi:
            places = stack.enter_context(mpi_ranks(workers))
        logs: list[IO[str] | None] = [None] * workers
        if log_path is not None:
            logs = [stack.enter_context(_open_log(log_path, r)) for r in range(workers)]

        display = Display(stdout, stderr)
        supervisor = Supervisor(display, grace_seconds)
        with supervisor.watching():
            for rank in range(workers):
                output = WorkerOutput(
                    rank, display, show_all=all_output, log=logs[rank]
                )
                own = {**environment, **variables[rank], **places[rank].variables}
                worker = WorkerProcess(
                    rank,
                    command,
                    own,
                    places[rank].descriptors,
                    watched=workers > 1 and not independent,
                )
                supervisor.add(worker, output)
            exit_code = supervisor.wait()
        failed = supervisor.first_failure
        if failed is not None:
            lines = supervisor.last_lines(failed.rank)
            for line in _report(failed, lines, log_path):
                display.print_line("stderr", line)
        return exit_code


def _report(
    worker: WorkerProcess, lines: Sequence[str], log_path: Path | None
) -> list[str]:
    ending = describe_exit(worker.exit_code or 0)
    hint = " (the kernel does so when memory runs out)" if "SIGKILL" in ending else ""
    heading = "last lines" if lines else "it wrote nothing"
    where = (
        "Pass --log-dir DIR to keep all that each worker writes."
        if log_path is None
        else f"All of its output: {log_path / f'rank-{worker.rank}.log'}"
    )
    return [
        "",
        f"fastnet: worker {worker.rank} failed first: {ending}{hint}; {heading}"
        + (":" if lines else ""),
        *(f"[{worker.rank}] {line}" for line in lines),
        f"fastnet: the other workers were ended. {where}",
    ]


def _describe(
    variables: Sequence[Mapping[str, str]], command: Sequence[str], mpi: bool
) -> str:
    """Returns what a dry run prints, in the shell's notation."""
    parts = ["# and what `mpiexec` sets for its ranks\n"] if mpi else []
    for rank, worker in enumerate(variables):
        parts.append(f"# worker {rank}\n")
        parts += [f"{key}={shlex.quote(value)} \\\n" for key, value in worker.items()]
        parts.append(f"{shlex.join(interpreter_command(command))}\n")
    return "".join(parts)


def _check_grace_seconds(value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"--grace-seconds must be a finite number >= 0. Received: {value}. "
            f"Leave it out for {DEFAULT_GRACE_SECONDS:g} seconds."
        )


def _check_no_cluster(environment: Mapping[str, str]) -> None:
    cluster = environment.get("TF_CONFIG")
    if cluster:
        shown = cluster if len(cluster) <= 80 else f"{cluster[:77]}..."
        raise UsageError(
            "`fastnet run` makes a cluster of its own, so TF_CONFIG must not be set. "
            f"Received: TF_CONFIG={shown}. Where a cluster manager sets it, run "
            "`python script.py` instead of `fastnet run`; otherwise `unset TF_CONFIG`."
        )


def _check_log_directory(path: Path) -> None:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise _log_directory_error(path, f"{existing} is not a writable directory")


def _open_log(path: Path, rank: int) -> IO[str]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return (path / f"rank-{rank}.log").open("w", encoding="utf-8")
    except OSError as error:
        raise _log_directory_error(path, str(error)) from error


def _log_directory_error(path: Path, reason: str) -> UsageError:
    return UsageError(
        "--log-dir must be a directory that exists or can be made, and can be written "
        f"to. Received: {path} ({reason}). Choose another directory."
    )
