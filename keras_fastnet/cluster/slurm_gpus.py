"""GPUs that the tasks of a Slurm node have to share out."""

from collections.abc import Mapping

from keras_fastnet.cluster.slurm_layout import expand_counts
from keras_fastnet.errors import ClusterError


def own_gpus(environment: Mapping[str, str]) -> str | None:
    """Returns a task's own `CUDA_VISIBLE_DEVICES`; `None` where it is right already.

    With `--gpus-per-task` Slurm shows each task its own GPUs. With `--gpus-per-node`
    and `--gres` every task sees all of the node's, which no two workers may use at
    once: each takes its contiguous part.

    Args:
        environment: The environment variables of a task.

    Raises:
        ClusterError: The GPUs cannot be divided.
    """
    # The list may name them by number or by UUID.
    visible = [g for g in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if g]
    counts = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    tasks = counts[int(environment.get("SLURM_NODEID", "0"))]
    on_node = environment.get("SLURM_GPUS_ON_NODE")
    if tasks < 2 or not visible or str(len(visible)) != on_node:
        return None
    if len(visible) % tasks:
        raise ClusterError(
            "The GPUs that a node's tasks share must be a multiple of the tasks. "
            f"Received: {len(visible)} GPU(s) and {tasks} tasks. Start as many tasks "
            "as there are GPUs, each with its own: `srun --gpus-per-task=1`."
        )
    share = len(visible) // tasks
    first = int(environment.get("SLURM_LOCALID", "0")) * share
    return ",".join(visible[first : first + share])
