"""Checks of the options of `fastnet run` that need more than one value."""

import resource
from collections.abc import Mapping

from keras_fastnet.cluster.cluster_spec import split_address
from keras_fastnet.errors import ClusterError, UsageError

# A port, two pipes, a process, a log and what MPI adds; and the launcher's own.
_OPEN_FILES_PER_WORKER = 8
_OPEN_FILES = 32


def check_sizes(least: int, workers: int, most: int) -> None:
    """Checks the numbers of workers with which training may go on.

    Args:
        least: That of `--min-workers`.
        workers: That of `--workers`.
        most: That of `--max-workers`.

    Raises:
        UsageError: If they do not increase.
    """
    if least > workers:
        raise UsageError(
            "--min-workers M must be at most the number of workers. Received: "
            f"{least}, with --workers {workers}. Pass a number from 1 to {workers}."
        )
    if most < workers:
        raise UsageError(
            "--max-workers X must be at least the number of workers. Received: "
            f"{most}, with --workers {workers}. Pass a number from {workers} on."
        )


def check_nodes(nnodes: int, node_rank: int | None, rendezvous: str | None) -> None:
    """Checks the options of several machines.

    Args:
        nnodes: That of `--nnodes`.
        node_rank: That of `--node-rank`.
        rendezvous: That of `--rendezvous`.

    Raises:
        UsageError: If they do not describe a machine's place.
    """
    if nnodes == 1:
        if node_rank not in (None, 0) or rendezvous is not None:
            raise UsageError(
                "--node-rank and --rendezvous are for several machines. Received: them "
                "without --nnodes. Pass --nnodes N, the number of machines, too."
            )
        return
    if node_rank is None or not 0 <= node_rank < nnodes:
        raise UsageError(
            f"--node-rank R must be this machine's number, from 0 to {nnodes - 1}, "
            f"with --nnodes {nnodes}. Received: {node_rank}. Give each machine its own."
        )
    try:
        split_address(rendezvous or "")
    except ClusterError:
        raise UsageError(
            "--rendezvous must be HOST:PORT, which leads to machine 0 from all "
            f"machines. Received: {rendezvous}. Pass the same on all machines, for "
            "example --rendezvous host0:29400."
        ) from None


def check_for_several_machines(
    mpi: bool, dry_run: bool, environment: Mapping[str, str]
) -> None:
    """Checks options and environment for `--nnodes`.

    Args:
        mpi: Whether `--transport mpi` was given.
        dry_run: Whether `--dry-run` was given.
        environment: The variables that the workers inherit.

    Raises:
        UsageError: If an option is for one machine, or the token is too short.
    """
    for given, option, advice in (
        (mpi, "--transport mpi", "Start the workers of all machines with mpiexec."),
        (dry_run, "--dry-run", "Try it without --nnodes."),
    ):
        if given:
            raise UsageError(
                f"{option} is for one machine. Received: it with --nnodes. {advice}"
            )


def check_no_cluster(environment: Mapping[str, str]) -> None:
    """Checks that no cluster manager has described a cluster.

    Args:
        environment: The variables that the workers inherit.

    Raises:
        UsageError: If TF_CONFIG is set.
    """
    cluster = environment.get("TF_CONFIG")
    if cluster:
        shown = cluster if len(cluster) <= 80 else f"{cluster[:77]}..."
        raise UsageError(
            "`fastnet run` starts local workers, so TF_CONFIG must not be set. "
            f"Received: TF_CONFIG={shown}. If a cluster manager sets it, run "
            "`python script.py` instead of `fastnet run`; otherwise `unset TF_CONFIG`."
        )


def check_open_files(workers: int) -> None:
    """Checks that this process may open the files that the workers need.

    Args:
        workers: The number of workers.

    Raises:
        UsageError: If there are too many workers.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = _OPEN_FILES + _OPEN_FILES_PER_WORKER * workers
    if limit != resource.RLIM_INFINITY and needed > limit:
        most = max(0, limit - _OPEN_FILES) // _OPEN_FILES_PER_WORKER
        raise UsageError(
            "--workers N must fit the number of files that a process may open, "
            f"{_OPEN_FILES_PER_WORKER} for each worker. Received: {workers}, with a "
            f"limit of {limit} files. Start at most {most} workers, or raise the limit "
            f"with `ulimit -n {needed}`."
        )
