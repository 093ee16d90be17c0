"""Texts of the errors of a rendezvous."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster

# A fact may come from another program, and be of any length.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200


def difference(
    own: Mapping[str, Any], others: Mapping[str, Any], rank: int
) -> str | None:
    """Returns the error that names the first fact in which another rank differs.

    Args:
        own: The facts of rank 0.
        others: The facts of the other rank.
        rank: The other rank.

    Returns:
        The error, or `None` if there is no difference.
    """
    for name, mine in own.items():
        other = others.get(name)
        if other == mine:
            continue
        if name == "workers" and isinstance(other, list):
            mine, other = _contrast(mine, other)
            name = "the workers' addresses"
        return (
            "All workers must be started with the same cluster, versions and "
            f"settings. Received for {name}: {_SHORT.repr(mine)} on rank 0, "
            f"{_SHORT.repr(other)} on rank {rank}. Make them equal and start all "
            "workers again."
        )
    return None


def _contrast(own: list[Any], other: list[Any]) -> tuple[Any, Any]:
    """Returns in which item or length two lists, which may be long, differ."""
    if len(own) != len(other):
        return f"{len(own)} workers", f"{len(other)} workers"
    return next(pair for pair in zip(own, other, strict=True) if pair[0] != pair[1])


def same_rank(rank: int, one: str, other: str) -> str:
    """Returns the error for two processes with the same rank.

    Args:
        rank: The rank.
        one: The host or address of one of them.
        other: That of the other.
    """
    return (
        "Every worker needs its own index. Received: two processes with rank "
        f"{rank}, at {one} and {other}. Correct the task's index, or end the "
        "process that is left over from an earlier start."
    )


def wrong_address(cluster: Cluster, rank: int, how: str) -> str:
    """Returns the error for an address that does not lead to its worker.

    Args:
        cluster: The cluster.
        rank: The worker's rank.
        how: Where it leads, as the end of a sentence.
    """
    return (
        "Every worker's address must lead to that worker. Received: "
        f"{cluster.addresses[rank]} for rank {rank}, which {how}. Correct the "
        "address, or open the port."
    )


def missing(
    cluster: Cluster, ranks: Sequence[int], timeout: float, refusals: Sequence[str]
) -> str:
    """Returns the error that names missing ranks.

    Args:
        cluster: The cluster.
        ranks: The missing ranks.
        timeout: Seconds within which they had to start.
        refusals: Which processes were refused and why, as sentences.
    """
    return (
        f"All {cluster.size} workers must start within {timeout:g} s of each other. "
        f"Received: missing ranks: {named(cluster, ranks)}. Look for an error in "
        f"their logs, and check that rank 0's address {cluster.addresses[0]} can be "
        "reached from there; a larger `start_timeout` allows more time."
        + "".join(f" {refusal}" for refusal in refusals[:4])
    )


def unreached(cluster: Cluster, timeout: float, problem: str) -> str:
    """Returns the error of a worker that does not reach rank 0.

    Args:
        cluster: The cluster.
        timeout: Seconds within which it had to.
        problem: Why the last attempt failed.
    """
    return (
        f"Rank {cluster.rank} must reach rank 0 within {timeout:g} s. Received at "
        f"{cluster.addresses[0]}: {problem}. Check that rank 0 is started and its log "
        "has no error, and that this address of rank 0 is right on every worker and "
        "can be reached from here; a larger `start_timeout` allows more time."
    )


def lost(cluster: Cluster, how: str) -> str:
    """Returns the error of a worker that has lost rank 0.

    Args:
        cluster: The cluster.
        how: What happened.
    """
    return (
        "Rank 0 must run until all workers have met. Received by rank "
        f"{cluster.rank} from {cluster.addresses[0]}: {how}. Look for an error in "
        "rank 0's log."
    )


def named(cluster: Cluster, ranks: Sequence[int]) -> str:
    """Returns ranks with their addresses, the first eight of them.

    Args:
        cluster: The cluster.
        ranks: The ranks.
    """
    shown = ", ".join(f"{rank} ({cluster.addresses[rank]})" for rank in ranks[:8])
    return shown + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
