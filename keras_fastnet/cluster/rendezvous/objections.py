"""What rank 0 may have to object to a meeting."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster


def difference(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], rank: int
) -> str | None:
    """Names the first of rank 0's facts that another rank's differ from."""
    for name, own in ours.items():
        other = theirs.get(name)
        if other == own:
            continue
        if name == "workers" and isinstance(other, list):
            own, other = _contrast(own, other)
            name = "the workers' addresses"
        return (
            "All workers must be started with the same cluster, versions and "
            f"settings. Received for {name}: {own!r} on rank 0, {other!r} on "
            f"rank {rank}. Make them equal and start all workers again."
        )
    return None


def absence(
    cluster: Cluster, missing: Sequence[int], came: Collection[int], timeout: float
) -> str:
    """Names who is missing, and who of them `came` before."""
    named = ", ".join(
        f"{rank} ({cluster.addresses[rank]}"
        + (", which came and ended again)" if rank in came else ")")
        for rank in missing[:8]
    )
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return (
        f"All {cluster.size} workers must start within {timeout:g} s "
        f"of each other. Received: missing ranks: {named}{more}. Look for an "
        "error in their logs, and whether rank 0's address "
        f"{cluster.addresses[0]} can be reached from there; a larger "
        "`start_timeout` allows more time."
    )


def wrong_address(cluster: Cluster, rank: int, how: str) -> str:
    """Says that a worker is not to be found at its address."""
    return (
        "Every worker's address must lead to that worker. Received: "
        f"{cluster.addresses[rank]} for rank {rank}, which {how}. Correct the address, "
        "or open the port."
    )


def twins(rank: int, one: str, other: str) -> str:
    """Says that processes on `one` and on the `other` host have the same rank."""
    return (
        "Every worker needs an index of its own. Received: two processes with rank "
        f"{rank}, at {one} and {other}. Correct the task's index, or end the "
        "process that is left over from an earlier start."
    )


def _contrast(ours: list[Any], theirs: list[Any]) -> tuple[Any, Any]:
    """Picks what differs between two lists, which may be long."""
    if len(ours) != len(theirs):
        return f"{len(ours)} workers", f"{len(theirs)} workers"
    return next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])
