"""What environment variables say of this process: its rank, and who started it."""

import os
from collections.abc import Mapping
from typing import NamedTuple

# Set in the processes that Ray starts.
_RAY = "RAY_RAYLET_PID"
# MPICH, Intel MPI and Slurm's PMI-2; Open MPI. Not PMIx, which MPICH's wheel lacks.
_MPI_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
_MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


class ProcessRank(NamedTuple):
    """The rank and world size of this process, as one source states them.

    Attributes:
        source: Name of the source, for messages.
        rank: This process's number, from 0.
        size: The number of processes; 0 if the source does not state it.
    """

    source: str
    rank: int
    size: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} from {self.source}"


def mpi_rank(environment: Mapping[str, str]) -> ProcessRank | None:
    """Returns the rank that MPI's launcher has set; `None` if it has set none.

    MPI itself is not loaded: in a process that it did not start this may hang or fail.

    Args:
        environment: The environment variables.
    """
    rank, size = (
        next((int(text) for text in map(environment.get, names) if text), None)
        for names in (_MPI_RANKS, _MPI_SIZES)
    )
    return None if rank is None else ProcessRank("MPI", rank, size or 0)


def slurm_rank(environment: Mapping[str, str]) -> ProcessRank | None:
    """Returns a task's rank; `None` outside a step of several tasks.

    An sbatch script itself runs outside any step: `srun` creates one. The variables of
    a step are inherited: Ray's workers have those of the daemon that started them, and
    so have the ranks of `mpiexec`, which may start its daemons by `srun`. Such
    variables are ignored.

    Args:
        environment: The environment variables.
    """
    rank = environment.get("SLURM_PROCID", "")
    size = environment.get("SLURM_STEP_NUM_TASKS", "")
    numbers = rank.isdecimal() and size.isdecimal()
    if _RAY in environment or not numbers or int(size) < 2:
        return None
    mpi = mpi_rank(environment)
    if mpi is not None and (mpi.rank, mpi.size or int(size)) != (int(rank), int(size)):
        return None
    job, step = (
        environment.get(name, "?") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return ProcessRank(f"Slurm (job {job}, step {step})", int(rank), int(size))


def who_started(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns the name of the source that describes a cluster; `None` if none does.

    Args:
        environment: The environment variables.
    """
    if environment.get("TF_CONFIG"):
        return "TF_CONFIG"
    mpi = mpi_rank(environment)
    if mpi is not None and mpi.size != 1:
        return "MPI"
    slurm = slurm_rank(environment)
    return slurm.source if slurm is not None else None


def left_out(environment: Mapping[str, str]) -> str | None:
    """Returns what was started beside a process that finds no cluster, as a text.

    Such a process trains alone, which may be meant, or be a common mistake.

    Args:
        environment: The environment variables.
    """
    tasks = environment.get("SLURM_NTASKS", "")
    in_step = "SLURM_STEP_NUM_TASKS" in environment
    if tasks.isdecimal() and int(tasks) > 1 and not in_step:
        return f"Slurm's job has {tasks} tasks: start them with `srun python train.py`"
    if (pod := environment.get("JOB_COMPLETION_INDEX")) is not None:
        return f"this is pod {pod} of a Job: start each with `fastnet run --hosts`"
    return None
