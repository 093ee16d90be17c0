"""All workers meet before TensorFlow's servers start.

TensorFlow waits for a missing worker without end and without a message. So the workers
first meet here, over plain TCP on the addresses that TensorFlow will use. Rank 0 leads,
the other ranks follow:

1. A follower connects to rank 0 and sends a hello: its rank and its facts, which are
   the cluster as it is described there, and versions.
2. Rank 0 connects to the follower's address and sends a call, which the follower
   returns on its own connection: the address leads to this follower and to no other.
   Now rank 0 welcomes it.
3. Rank 0 sends to all followers what they agreed on, or what is wrong.

Each message is a JSON object on one line. Any process can connect to a port, so rank 0
raises an error about a follower only after the follower's address has led to it. A
wrong hello from elsewhere is answered with the error and logged, and rank 0's own error
repeats it if a worker is missing in the end. Health probes and the like are closed.

With a token, both ends of a connection first prove that they have it (`token_proof`).
Then a wrong hello is a mistake in any case, and all workers raise it immediately.
"""

import math
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.ports import listen
from keras_fastnet.cluster.rendezvous.connections import Connections
from keras_fastnet.cluster.rendezvous.follower import Follower
from keras_fastnet.cluster.rendezvous.leader import Leader
from keras_fastnet.cluster.rendezvous.token_proof import checked_token


def meet(
    cluster: Cluster,
    facts: Mapping[str, Any],
    proposal: Any,
    timeout: float,
    node: str,
    token: str | None = None,
) -> tuple[Any, list[str]]:
    """Waits until all workers of the cluster have started.

    Args:
        cluster: The workers' addresses and this worker's rank.
        facts: Values that must be equal on all workers, such as versions. JSON values.
        proposal: What rank 0 sends to the other ranks, such as a seed. A JSON value.
        timeout: Seconds within which all workers must have started, counted from the
            first.
        node: The name of the machine that this worker runs on.
        token: A secret that all workers must have. Defaults to `None`: none.

    Returns:
        Rank 0's `proposal` and the nodes of all workers, by rank, on every rank.

    Raises:
        ClusterError: If a port is in use, a worker does not start in time, or workers
            differ in their cluster, facts or token. All connected workers raise it,
            at most 20 seconds after `timeout`.
        ValueError: If `timeout` is not a positive, finite number.
    """
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(
            "`start_timeout` must be a positive, finite number of seconds. "
            f"Received: {timeout!r}."
        )
    facts = {"workers": list(cluster.addresses), **facts}
    token = checked_token(token)
    with (
        listen(cluster) as listener,
        Connections(listener, cluster.rank, token) as connections,
    ):
        if cluster.rank == 0:
            leader = Leader(cluster, connections, facts, timeout, node)
            return leader.lead(proposal)
        return Follower(cluster, connections, facts, timeout, node).follow()
