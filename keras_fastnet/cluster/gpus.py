"""The division of a host's GPUs between its processes, without TensorFlow."""

from collections.abc import Mapping, Sequence

from keras_fastnet.cluster.environment import expand_counts
from keras_fastnet.errors import ClusterError, UsageError
from keras_fastnet.text import count


def divide_gpus(
    gpus: Sequence[str], workers: int, per_worker: int | None = None
) -> list[list[str]] | None:
    """Divides GPUs between the workers that `fastnet run` starts.

    Every worker gets a contiguous block of the same length.

    Args:
        gpus: Names of the visible GPUs, in order.
        workers: The number of workers.
        per_worker: GPUs for each worker; the remaining ones stay idle. Defaults to
            `None`, which divides all of them.

    Returns:
        A list of names for each worker, or `None` if the machine has no GPU.

    Raises:
        UsageError: If the GPUs are not a multiple of the workers, or too few.
    """
    own = len(gpus) // workers if per_worker is None else per_worker
    if (per_worker is None and len(gpus) % workers) or own * workers > len(gpus):
        raise UsageError(
            "The visible GPUs must be a multiple of the workers or, with "
            f"--gpus-per-worker, enough for all. Received: {len(gpus)} visible GPUs "
            f"({','.join(gpus)}), {workers} workers, {per_worker or 'equally many'} "
            "for each. Change --workers or --gpus-per-worker (0 trains on the CPU), or "
            "the GPUs in CUDA_VISIBLE_DEVICES."
        )
    if not gpus:
        return None
    return [list(gpus[rank * own : (rank + 1) * own]) for rank in range(workers)]


def slurm_task_gpus(environment: Mapping[str, str]) -> str | None:
    """Returns the `CUDA_VISIBLE_DEVICES` of a Slurm task; `None` to leave it as it is.

    With `--gpus-per-task` each task sees only its own GPUs. With `--gpus-per-node` and
    `--gres` every task sees all GPUs of the node, and takes a contiguous block of them:
    two workers cannot use the same GPU.

    Args:
        environment: The environment variables of a task.

    Raises:
        ClusterError: If the GPUs are not a multiple of the node's tasks.
    """
    # The list may name them by number or by UUID.
    listed = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    # Slurm writes "NoDevFiles" for none.
    visible = [gpu for gpu in listed if gpu not in ("", "NoDevFiles")]
    counts = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = counts[int(environment.get("SLURM_NODEID", "0"))]
    on_node = environment.get("SLURM_GPUS_ON_NODE")
    if tasks < 2 or not visible or str(len(visible)) != on_node:
        return None
    local = int(environment.get("SLURM_LOCALID", "0"))
    return ",".join(visible[_own_block(len(visible), tasks, local)])


def mpi_process_gpus(seen: Sequence[tuple[str, str | None, int]], rank: int) -> slice:
    """Returns the visible GPUs that an MPI process uses.

    Processes of one host that see the same GPUs divide them into contiguous blocks.

    Args:
        seen: The host of each process, its `CUDA_VISIBLE_DEVICES` and the number of
            GPUs that it sees.
        rank: The index of this process in `seen`.

    Raises:
        ClusterError: If the GPUs are not a multiple of the processes that see them.
    """
    sharing = [i for i, facts in enumerate(seen) if facts == seen[rank]]
    return _own_block(seen[rank][2], len(sharing), sharing.index(rank))


def _own_block(gpus: int, processes: int, index: int) -> slice:
    if gpus % processes:
        raise ClusterError(
            f"{count(gpus, 'GPU')} cannot be divided among {processes} processes of a "
            "host. Start as many processes as there are GPUs, or give each its own "
            "(`srun --gpus-per-task=1`, CUDA_VISIBLE_DEVICES); CUDA_VISIBLE_DEVICES=-1 "
            "trains on the CPU."
        )
    each = gpus // processes
    return slice(index * each, (index + 1) * each)
