"""`run`, which runs a Python program in several local TensorFlow workers."""

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Literal, TextIO

from keras_fastnet.arguments import checked_integer, checked_number
from keras_fastnet.cluster.ports import reserved_ports
from keras_fastnet.errors import UsageError
from keras_fastnet.launcher.control import FOLDER, Control
from keras_fastnet.launcher.machine import available_cpus, visible_gpus
from keras_fastnet.launcher.mpiexec import can_start_ranks
from keras_fastnet.launcher.option_checks import (
    check_for_several_machines,
    check_no_cluster,
    check_nodes,
    check_open_files,
    check_sizes,
)
from keras_fastnet.launcher.output import Display
from keras_fastnet.launcher.python_command import check_command, interpreter_command
from keras_fastnet.launcher.report import Report
from keras_fastnet.launcher.restarts import Restarts
from keras_fastnet.launcher.start import Starter
from keras_fastnet.launcher.starts import Starts
from keras_fastnet.launcher.supervisor import Supervisor
from keras_fastnet.launcher.worker_environment import worker_environments

# Long enough to close files, short enough to wait for after a Ctrl-C.
DEFAULT_GRACE_SECONDS = 5.0


def run(
    workers: int,
    command: Sequence[str],
    *,
    port: int | None = None,
    threads_per_worker: int | None = None,
    gpus_per_worker: int | None = None,
    all_output: bool = False,
    tf_logs: bool = False,
    log_dir: str | os.PathLike[str] | None = None,
    max_restarts: int = 0,
    min_workers: int | None = None,
    max_workers: int | None = None,
    report: str | os.PathLike[str] | None = None,
    nnodes: int = 1,
    node_rank: int | None = None,
    rendezvous: str | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    dry_run: bool = False,
    transport: Literal["auto", "tensorflow", "mpi"] = "auto",
    independent: bool = False,
    environment: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    on_failure: Callable[[Sequence[str]], object] | None = None,
) -> int:
    """Runs a Python program in local workers and waits until all have ended.

    Args:
        workers: The number of workers on this machine, at least 1.
        command: The words that follow `python`: a script and its arguments, or `-m`,
            a module and its arguments.
        port: The port of worker 0; worker r has `port + r`. Defaults to `None`: any
            free ports.
        threads_per_worker: The size of each of a worker's thread pools. Defaults
            to `None`: the CPUs of this process divided by `workers`.
        gpus_per_worker: GPUs for each worker. Defaults to `None`: the visible GPUs
            divided by `workers`.
        all_output: Whether to show the whole output of every worker, not only of
            rank 0. Defaults to `False`.
        tf_logs: Whether to show TensorFlow's information lines. Defaults to `False`.
        log_dir: A directory for the files `rank-0.log` and so on, which receive the
            whole output of each worker. Defaults to `None`.
        max_restarts: How many times all workers are started again after a failure.
            Defaults to `0`.
        min_workers: The smallest number of workers on this machine with which training
            may go on, if workers keep failing or `fastnet scale` asks for it. Defaults
            to `None`: `workers`.
        max_workers: The largest number, for `fastnet scale`. Defaults to `None`:
            `workers`.
        report: A file for a JSON object about all starts and failures. Defaults to
            `None`.
        nnodes: The number of machines, on each of which `run` is called. Defaults
            to `1`.
        node_rank: This machine's number, from 0. Defaults to `None`, for one machine.
        rendezvous: `host:port` of machine 0, for the launchers. Defaults to `None`,
            for one machine.
        grace_seconds: Seconds between SIGTERM and SIGKILL when workers are ended.
            Defaults to `5.0`.
        dry_run: Whether to print each worker's environment and command, and start
            nothing. Defaults to `False`.
        transport: `"mpi"`, whether the workers are also ranks of an MPI world, over
            which `TorusStrategy` then reduces; `"tensorflow"`, whether they are not.
            Defaults to `"auto"`: they are on CPUs of one machine, if the wheels of
            `keras-fastnet[mpi]` are installed.
        independent: Whether each worker may train a separate model, without a
            strategy. Defaults to `False`.
        environment: The variables that the workers inherit. Defaults to `os.environ`.
        stdout: Receives the workers' stdout. Defaults to `sys.stdout`.
        stderr: Receives the workers' stderr and the launcher's messages. Defaults to
            `sys.stderr`.
        on_failure: Called after a start that failed, with the lines about the worker
            that failed first. Defaults to `None`: they are written to `stderr`.

    Returns:
        0 if all workers succeed; otherwise the exit code of the worker that failed
        first in the last start, or 128 plus the number of the signal that killed it. If
        the launcher itself gets a signal, 128 plus its number.

    Raises:
        UsageError: If the workers cannot be started. None was started then.
        ValueError: If a number is out of range.
    """
    stdout = stdout or sys.stdout
    stderr = stderr or sys.stderr
    environment = os.environ if environment is None else environment
    checked_integer("workers", workers, at_least=1)
    if threads_per_worker is not None:
        checked_integer("threads_per_worker", threads_per_worker, at_least=1)
    if gpus_per_worker is not None:
        checked_integer("gpus_per_worker", gpus_per_worker, at_least=0)
    checked_number("grace_seconds", grace_seconds, at_least=0.0)
    checked_integer("max_restarts", max_restarts, at_least=0)
    checked_integer("nnodes", nnodes, at_least=1)
    check_nodes(nnodes, node_rank, rendezvous)
    node = node_rank or 0
    if nnodes > 1:
        check_for_several_machines(transport == "mpi", dry_run, environment)
    least = most = workers
    if min_workers is not None:
        least = checked_integer("min_workers", min_workers, at_least=1)
    if max_workers is not None:
        most = checked_integer("max_workers", max_workers, at_least=1)
    check_sizes(least, workers, most)
    check_open_files(most)
    check_command(command)
    check_no_cluster(environment)
    log_path = None if log_dir is None else Path(log_dir)

    gpus = visible_gpus(environment)
    on_cpus = not gpus or gpus_per_worker == 0
    mpi = transport == "mpi" or (
        transport == "auto"
        and (most > 1 and nnodes == 1 and on_cpus and not independent)
        and can_start_ranks(environment)
    )
    with ExitStack() as stack:
        ports = stack.enter_context(reserved_ports(most, port))
        variables = worker_environments(
            ports[:workers] if dry_run else ports,
            environment,
            parts=most,
            cpus=available_cpus(),
            gpus=gpus,
            threads_per_worker=threads_per_worker,
            gpus_per_worker=gpus_per_worker,
            independent=independent,
            tf_logs=tf_logs,
        )
        if log_path is not None:
            _check_log_directory(log_path)
        if dry_run:
            stdout.write(_describe(variables, command, mpi))
            stdout.flush()
            return 0
        logs: list[IO[str] | None] = [None] * most
        if log_path is not None:
            for rank in range(most):
                logs[rank] = log = _open_log(log_path, rank)
                stack.callback(_close, log)
        written = Report(
            None if report is None else Path(report),
            command=list(command),
            workers=workers,
            max_restarts=max_restarts,
            min_workers=least,
            max_workers=most,
            nnodes=nnodes,
            node_rank=node,
        )
        folder = None
        if max_restarts or report is not None or nnodes > 1 or least < most:
            temporary = tempfile.TemporaryDirectory(prefix=FOLDER)
            folder = Path(stack.enter_context(temporary))
        display = Display(stdout, stderr)
        supervisor = Supervisor(display, grace_seconds)
        starter = Starter(
            command=command,
            environment=environment,
            variables=variables,
            ports=ports,
            logs=logs,
            all_output=all_output,
            tf_logs=tf_logs,
            has_gpus=bool(gpus),
            independent=independent,
            mpi=mpi,
            folder=folder,
        )
        restarts = Restarts(
            workers,
            max_restarts,
            least,
            most,
            where="" if nnodes == 1 else " on this machine",
        )
        with supervisor.watching(), ExitStack() as connected:
            nodes = None
            starts = Starts(
                starter,
                supervisor,
                display,
                restarts,
                written,
                log_path,
                nodes,
                on_failure,
            )
            if folder is not None and node == 0:
                control = Control(folder, starts.scale)
                connected.callback(control.close)
                supervisor.watch(control.fileno(), control.serve)
            return starts.run()


def _describe(
    variables: Sequence[Mapping[str, str]], command: Sequence[str], mpi: bool
) -> str:
    """Returns the text of a dry run, in the shell's syntax."""
    parts = ["# plus the variables that `mpiexec` sets\n"] if mpi else []
    for rank, worker in enumerate(variables):
        parts.append(f"# worker {rank}\n")
        parts += [f"{key}={shlex.quote(value)} \\\n" for key, value in worker.items()]
        parts.append(f"{shlex.join(interpreter_command(command))}\n")
    return "".join(parts)


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


def _close(log: IO[str]) -> None:
    # On a full disk the last lines fail again; `WorkerOutput` has reported it.
    with contextlib.suppress(OSError):
        log.close()


def _log_directory_error(path: Path, reason: str) -> UsageError:
    return UsageError(
        "--log-dir must be a writable directory, or one that can be created. "
        f"Received: {path} ({reason}). Choose another directory."
    )
