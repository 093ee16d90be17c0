"""What can be known of an MPI world without loading MPI."""

import importlib.util
import os
from collections.abc import Mapping

# MPICH, Intel MPI and Slurm's PMI; Open MPI; PMIx.
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def started_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Tells whether MPI started this process together with others.

    MPI itself is not asked: where it started nothing, that may take long or fail.

    Args:
        environment: The environment variables.
    """
    return rank_in(environment) is not None and size_in(environment) != 1


def mpi4py_is_installed() -> bool:
    """Tells whether Python can reach MPI, without loading it."""
    return importlib.util.find_spec("mpi4py") is not None


def rank_in(environment: Mapping[str, str]) -> int | None:
    """Returns the rank that MPI's launcher gave; `None` where it gave none.

    Args:
        environment: The environment variables.
    """
    return _first_number(environment, _RANKS)


def size_in(environment: Mapping[str, str]) -> int | None:
    """Returns how many ranks MPI's launcher started; `None` where it does not say.

    Args:
        environment: The environment variables.
    """
    return _first_number(environment, _SIZES)


def _first_number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return None
