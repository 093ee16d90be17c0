"""The meeting of all workers, seen from one of them."""

import math
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.ports import listen
from keras_fastnet.cluster.rendezvous.follower import Follower
from keras_fastnet.cluster.rendezvous.leader import Leader
from keras_fastnet.cluster.rendezvous.switchboard import Switchboard


def meet(
    cluster: Cluster,
    facts: Mapping[str, Any],
    proposal: Any,
    timeout: float,
    node: str,
) -> tuple[Any, list[str]]:
    """Waits until every worker of the cluster is there.

    Args:
        cluster: The workers and this worker's rank.
        facts: What must be equal on all workers, such as versions. JSON values.
        proposal: What rank 0 tells the others, such as a seed. A JSON value.
        timeout: Seconds within which all workers must have come, counted from the
            first.
        node: The name of the machine that this worker runs on.

    Returns:
        Rank 0's `proposal` and all workers' nodes, by rank, on every rank.

    Raises:
        ClusterError: A port is taken, somebody did not come in time, or workers
            differ in their cluster or facts. All workers that are there then get it,
            at most 20 seconds after `timeout`.
        ValueError: `timeout` is not a positive number.
    """
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(
            "`start_timeout` must be a positive, finite number of seconds. "
            f"Received: {timeout!r}."
        )
    facts = {"workers": list(cluster.addresses), **facts}
    with listen(cluster) as listener, Switchboard(listener) as board:
        if cluster.rank == 0:
            return Leader(cluster, board, facts, timeout, node).lead(proposal)
        return Follower(cluster, board, facts, timeout, node).follow()
