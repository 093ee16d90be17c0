"""How Slurm writes lists of hosts and tasks, and where it puts a step's tasks."""

import itertools
import re
from collections.abc import Sequence

from keras_fastnet.errors import ClusterError

# Commas within brackets belong to the host.
_HOST = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
# Slurm's own limit lies below.
_MOST = 1 << 20


def expand_hosts(text: str) -> list[str]:
    """Returns the hosts of a list such as `n[1-2,07],gpu[1-2]-[3-4]`, in its order.

    TensorFlow's own function does not know several brackets in one name.

    Args:
        text: The list.

    Raises:
        ClusterError: It is none.
    """
    items = _split(text, _HOST, "a list of hosts")
    hosts: list[str] = []
    for item in items:
        choices = [
            _numbers(piece[1], text) if piece[1] is not None else [piece[2]]
            for piece in _PIECE.finditer(item)
        ]
        hosts += map("".join, itertools.product(*choices))
    return hosts


def expand_counts(text: str) -> list[int]:
    """Returns the numbers of a list such as `3(x2),1`, which is 3, 3, 1.

    Args:
        text: The list.

    Raises:
        ClusterError: It is none.
    """
    counts: list[int] = []
    for item in _split(text, _COUNT, "a list of counts"):
        found = _COUNT.fullmatch(item)
        if found is None or int(found[2] or 1) > _MOST:
            raise _not_readable("a list of counts", text)
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def nodes_of_tasks(
    counts: Sequence[int], distribution: str, plane: int | None = None
) -> list[int]:
    """Returns each task's node, by rank.

    Args:
        counts: How many tasks each node has.
        distribution: Slurm's `--distribution`; empty for its default.
        plane: How many tasks in a row a node gets with `plane`.

    Raises:
        ClusterError: The distribution is another, such as `arbitrary`.
    """
    # What follows the first colon or comma is about sockets and cores.
    kind = re.split("[:,]", distribution.lower())[0]
    if kind in ("", "*", "block"):
        together = max(counts)
    elif kind == "cyclic":
        together = 1
    elif kind == "plane" and plane is not None and plane > 0:
        together = plane
    else:
        raise ClusterError(
            "Slurm must distribute the tasks by `block`, `cyclic` or `plane`. "
            f"Received: SLURM_DISTRIBUTION={distribution!r}. Start them with "
            "`srun --distribution=block`."
        )
    left = list(counts)
    nodes: list[int] = []
    while any(left):
        for node, tasks in enumerate(left):
            taken = min(tasks, together)
            nodes += [node] * taken
            left[node] -= taken
    return nodes


def _split(text: str, item: re.Pattern[str], what: str) -> list[str]:
    items = [found[0] for found in item.finditer(text)]
    if not items or ",".join(items) != text:
        raise _not_readable(what, text)
    return items


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if not 0 <= int(last) - int(first) < _MOST:
            raise _not_readable("a list of hosts", text)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _not_readable(what: str, text: str) -> ClusterError:
    return ClusterError(
        f"Slurm's variables must hold {what}. Received: {text!r}. Start the workers "
        "with `srun`; if it wrote that, describe the cluster by TF_CONFIG."
    )
