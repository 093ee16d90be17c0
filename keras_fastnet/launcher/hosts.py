"""The addresses of workers on several machines, each with a launcher of its own.

The launchers do not communicate. Each computes all addresses from the same list.
"""

from collections.abc import Sequence
from typing import NamedTuple

FIRST_PORT = 20_000
"""The port of the first worker of a machine. Linux does not give it to connections."""


class Host(NamedTuple):
    """A machine with workers.

    Attributes:
        name: The name or address at which the other machines reach it.
        workers: The number of its workers.
    """

    name: str
    workers: int


def addresses_of(hosts: Sequence[Host], first_port: int) -> list[str]:
    """Returns the address of every worker, by rank.

    Args:
        hosts: The machines, in the order of their ranks.
        first_port: The port of the first worker of each machine.

    Example:

    >>> addresses_of([Host("a", 2), Host("::1", 1)], 20000)
    ['a:20000', 'a:20001', '[::1]:20000']
    """
    return [
        f"{f'[{host.name}]' if ':' in host.name else host.name}:{first_port + worker}"
        for host in hosts
        for worker in range(host.workers)
    ]


def first_rank(hosts: Sequence[Host], node_rank: int) -> int:
    """Returns the rank of the first worker of a machine.

    Args:
        hosts: The machines.
        node_rank: The number of the machine, from 0.
    """
    return sum(host.workers for host in hosts[:node_rank])
