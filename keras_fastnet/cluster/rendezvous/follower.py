"""The part of all ranks but 0 in a rendezvous."""

import contextlib
import re
import time
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous.connections import (
    Connection,
    Connections,
    WaitingLog,
)
from keras_fastnet.cluster.rendezvous.dialer import Dialer
from keras_fastnet.cluster.rendezvous.token_proof import token_error
from keras_fastnet.errors import ClusterError

# A follower waits this much longer than `timeout`, to be told which rank is missing.
VERDICT_SECONDS = 15.0
# Rank 0's address may lead to a worker of an earlier start for a moment.
REFUSED_SECONDS = 3.0

_CALL = re.compile("[0-9a-f]{32}")


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
        # Whether rank 0 has answered, and whether it has also reached this worker.
        self._heard = False
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
                    if connection is self._leader.connection:
                        agreed = self._take(connection, message)
                        if agreed is not None:
                            return agreed
                    elif message is not None:
                        self._answer_call(connection, message)

    def _take(
        self, leader: Connection, message: dict[str, Any] | None
    ) -> tuple[Any, list[str]] | None:
        """Takes a message of rank 0, and returns what all workers agreed on."""
        match message:
            case None if self._welcome:
                raise self._lost("it closed the connection")
            case None:
                self._heard = False
            case {"error": str(text)}:
                raise ClusterError(text)
            case {"heard": _}:
                leader.keep()
                self._heard = True
            case {"welcome": _}:
                leader.keep()
                self._heard = self._welcome = True
            case {"agreed": proposal, "nodes": list(nodes)} if (
                self._welcome
                and len(nodes) == self._cluster.size
                and all(isinstance(node, str) for node in nodes)
            ):
                return proposal, nodes
        return None

    def _answer_call(self, connection: Connection, message: dict[str, Any]) -> None:
        """Returns a call to rank 0 over the connection that rank 0 knows."""
        match message:
            case {"call": int(rank), "id": str(call)} if _CALL.fullmatch(call):
                if self._leader.connection is not None:
                    echo = {"call": int(rank), "id": call}
                    self._leader.connection.send({"echo": echo})
                    return
        # Rank 0 calls again.
        self._connections.drop(connection)

    def _reach_leader(self, rest: float) -> None:
        if self._heard:
            if rest < -VERDICT_SECONDS:
                raise self._lost("it gave no verdict")
        elif self._leader.refused_seconds > REFUSED_SECONDS:
            raise ClusterError(token_error(self._leader.refusal, self._cluster.rank))
        elif rest < 0:
            raise self._unreached()
        if not self._welcome:
            self._leader.step(
                {
                    "hello": self._cluster.rank,
                    "facts": self._facts,
                    "node": self._node,
                    "patience": max(0.0, rest),
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
            if self._heard
            else f"waits for {leader}: {self._leader.problem}"
        )
        return f"Rank {self._cluster.rank} {what}. {max(0, rest):.0f} s are left."
