"""Ports for the tasks of a Slurm step on one node."""

import re
from collections.abc import Mapping

from keras_fastnet.cluster.numbers import number_in

FIRST_PORT = 20_000
"""The lowest port. Up to 32,767 none is given to outgoing connections by Linux."""
# A prime number of slots, as many ports wide as most nodes have tasks.
_SLOTS, _WIDTH = 199, 64
# About half the slots: the next job's first step is far from this one's second.
_STEP = 100


def ports_on_a_node(environment: Mapping[str, str], tasks: int) -> list[int]:
    """Returns the ports of a node's tasks, the same on all nodes of the step.

    `FASTNET_PORT` is the first where it is set. Otherwise they are those that Slurm
    has reserved for the step, for which it must be configured (`MpiParams=ports=`); or
    they follow from the job and the step: of 199 jobs in a row no two have the same.

    Args:
        environment: The environment variables of a task.
        tasks: How many tasks the fullest node has.

    Raises:
        ClusterError: `FASTNET_PORT` is no port, or too high.
    """
    first = number_in(environment, "FASTNET_PORT", 1, 65_536 - tasks, FIRST_PORT)
    if first is None:
        reserved = _reserved(environment.get("SLURM_STEP_RESV_PORTS", ""))
        if len(reserved) >= tasks:
            return reserved[:tasks]
        job, step = (
            int(environment.get(name, "0"))
            for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
        )
        first = FIRST_PORT + (job + _STEP * step) % _SLOTS * _WIDTH
    return list(range(first, first + tasks))


def _reserved(text: str) -> list[int]:
    ports: list[int] = []
    for first, last in re.findall(r"([0-9]+)(?:-([0-9]+))?", text):
        ports += range(int(first), int(last or first) + 1)
    return ports
