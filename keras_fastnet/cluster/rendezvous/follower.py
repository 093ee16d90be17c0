"""The part of all ranks but 0 in a rendezvous."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous.connections import (
    Connections,
    Dialer,
    WaitingLog,
)
from keras_fastnet.errors import ClusterError

# A follower waits this much longer than `timeout`, to be told which rank is missing.
VERDICT_SECONDS = 15.0


class Follower:
    """Reports to rank 0 and waits for its verdict.

    Args:
        cluster: The workers' addresses and this worker's rank.
        connections: This worker's connections.
        facts: Values that must be equal on all workers.
        timeout: Seconds within which rank 0 must be reached.
        node: The name of the machine that this worker runs on.
    """

    def __init__(
        self,
        cluster: Cluster,
        connections: Connections,
        facts: Mapping[str, Any],
        timeout: float,
        node: str,
    ):
        self._cluster = cluster
        self._connections = connections
        self._facts = facts
        self._timeout = timeout
        self._node = node
        self._deadline = time.monotonic() + timeout
        self._leader = Dialer(connections, cluster.addresses[0])
        self._welcome = False

    def follow(self) -> tuple[Any, list[str]]:
        """Returns rank 0's proposal and the nodes of all workers.

        Raises:
            ClusterError: If rank 0 is not reached or is lost, or reports an error.
        """
        log = WaitingLog()
        with contextlib.closing(self._leader):
            while True:
                rest = self._deadline - time.monotonic()
                log.log(self._waiting(rest))
                self._reach_leader(rest)
                for connection, message in self._connections.messages():
                    from_leader = connection is self._leader.connection
                    match message:
                        case {"agreed": proposal, "nodes": nodes} if from_leader:
                            return proposal, nodes
                        case {"error": text} if from_leader:
                            raise ClusterError(text)
                        case {"welcome": _} if from_leader:
                            connection.keep()
                            self._welcome = True
                        case None if from_leader and self._welcome:
                            raise self._lost("it closed the connection")
                        case {"call": _} if self._leader.connection is not None:
                            self._leader.connection.send({"echo": message})

    def _reach_leader(self, rest: float) -> None:
        if self._welcome:
            if rest < -VERDICT_SECONDS:
                raise self._lost("it gave no verdict")
        elif rest < 0:
            raise self._unreached()
        else:
            self._leader.step(
                {
                    "hello": self._cluster.rank,
                    "facts": self._facts,
                    "node": self._node,
                    "patience": rest,
                }
            )

    def _unreached(self) -> ClusterError:
        return ClusterError(
            f"Rank {self._cluster.rank} must reach rank 0 within {self._timeout:g} s. "
            f"Received at {self._cluster.addresses[0]}: {self._leader.problem}. Check "
            "that rank 0 is started and its log has no error, and that this address "
            "of rank 0 is right on every worker and can be reached from here; a "
            "larger `start_timeout` allows more time."
        )

    def _lost(self, how: str) -> ClusterError:
        return ClusterError(
            "Rank 0 must run until all workers have met. Received by rank "
            f"{self._cluster.rank} from {self._cluster.addresses[0]}: {how}. Look for "
            "an error in rank 0's log."
        )

    def _waiting(self, rest: float) -> str:
        leader = f"rank 0 ({self._cluster.addresses[0]})"
        what = (
            f"has reached {leader} and waits for the other workers"
            if self._welcome
            else f"waits for {leader}: {self._leader.problem}"
        )
        return f"Rank {self._cluster.rank} {what}. {max(0, rest):.0f} s are left."
