"""Texts of the errors that rank 0 reports in a rendezvous."""

import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster

# A fact may come from a stranger, and be of any length.
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
    cluster: Cluster,
    ranks: Sequence[int],
    seen: Collection[int],
    timeout: float,
    refusals: Sequence[str],
) -> str:
    """Returns the error that names missing ranks.

    Args:
        cluster: The cluster.
        ranks: The missing ranks.
        seen: Ranks that were there before.
        timeout: Seconds within which they had to start.
        refusals: Which processes were refused and why, as sentences.
    """
    named = ", ".join(
        f"{rank} ({cluster.addresses[rank]}"
        + (", which came and ended again)" if rank in seen else ")")
        for rank in ranks[:8]
    )
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return (
        f"All {cluster.size} workers must start within {timeout:g} s of each other. "
        f"Received: missing ranks: {named}{more}. Look for an error in their logs, and "
        f"check that rank 0's address {cluster.addresses[0]} can be reached from "
        "there; a larger `start_timeout` allows more time."
        + "".join(f" {refusal}" for refusal in refusals[:4])
    )
