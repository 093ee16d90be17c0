"""The part of rank 0 in a rendezvous."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous.connections import (
    ANSWER_SECONDS,
    Connection,
    Connections,
    Dialer,
    WaitingLog,
)
from keras_fastnet.errors import ClusterError
from keras_fastnet.text import count

# After an error rank 0 waits this long, to report it to workers that connect later.
LINGER_SECONDS = 5.0


class Leader:
    """Waits for the other ranks, compares their facts and decides.

    Args:
        cluster: The workers' addresses; this worker has rank 0.
        connections: This worker's connections.
        facts: Values that must be equal on all workers.
        timeout: Seconds within which all workers must have started.
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
        # No worker waits longer than its own time, so the first to start counts.
        self._deadline = time.monotonic() + timeout
        self._name = secrets.token_hex(8)
        self._followers: dict[int, Connection] = {}
        self._nodes = {0: node}
        # Those that have not been answered.
        self._calls: dict[int, Dialer] = {}
        self._seen: set[int] = set()
        self._told: set[int] = set()
        self._error: str | None = None

    def lead(self, proposal: Any) -> tuple[Any, list[str]]:
        """Returns `proposal` and all nodes, after it has sent them to all followers.

        Args:
            proposal: A JSON value for all workers.

        Raises:
            ClusterError: If a worker is missing, or described or started wrongly.
        """
        if self._cluster.size == 1:
            return proposal, [self._nodes[0]]
        # Its own address may lead to another process with rank 0.
        self._calls[0] = Dialer(self._connections, self._cluster.address)
        try:
            self._collect()
            if self._error is not None:
                self._linger(self._error)
                raise ClusterError(self._error)
            nodes = [self._nodes[rank] for rank in range(self._cluster.size)]
            self._tell_all({"agreed": proposal, "nodes": nodes})
        finally:
            for call in self._calls.values():
                call.close()
        return proposal, nodes

    def _collect(self) -> None:
        log = WaitingLog()
        while self._error is None:
            missing = [
                r for r in range(1, self._cluster.size) if r not in self._followers
            ]
            unreached = [rank for rank in self._calls if rank > 0]
            if not missing and not unreached:
                return
            late = time.monotonic() - self._deadline
            if missing and late > 0:
                self._error = self._missing(missing)
            # The last follower to connect has its own time to answer.
            elif late > ANSWER_SECONDS:
                rank = unreached[0]
                problem = self._calls[rank].problem
                self._fail_address(
                    rank, f"reached rank 0 but is not reached from there ({problem})"
                )
            else:
                log.log(self._waiting(missing, unreached))
                self._step()

    def _linger(self, error: str) -> None:
        end = time.monotonic() + LINGER_SECONDS
        self._tell_all({"error": error})
        followers = set(range(1, self._cluster.size))
        while not followers <= self._told and time.monotonic() < end:
            self._step()

    def _step(self) -> None:
        for rank, call in self._calls.items():
            call.step({"call": rank, "leader": self._name})
        for connection, message in self._connections.messages():
            match message:
                case None:
                    self._forget(connection)
                case {
                    "hello": int(rank),
                    "facts": dict(facts),
                    "node": str(node),
                    "patience": int() | float() as patience,
                    # NaN, which Python's JSON allows, is not in the range.
                } if rank > 0 and 0 <= patience < 1e18:
                    self._greet(connection, rank, facts, patience)
                    self._nodes[rank] = node
                case {"echo": {"call": int(rank), "leader": self._name}}:
                    self._check_echo(connection, rank)
                case {"call": int(rank), "leader": str(name)}:
                    self._check_call(connection, rank, name)
                case {"error": str(error)}:
                    # Another process with rank 0 has answered a call.
                    calls = self._calls.values()
                    if any(connection is call.connection for call in calls):
                        self._fail(error)

    def _greet(
        self,
        connection: Connection,
        rank: int,
        facts: Mapping[str, Any],
        patience: float,
    ) -> None:
        self._fail(_difference(self._facts, facts, rank))
        if rank in self._followers:
            peer = self._followers[rank].peer
            self._fail(_same_rank(rank, peer, connection.peer))
        if self._error is not None:
            self._tell(connection, {"error": self._error})
            self._told.add(rank)
        elif rank < self._cluster.size:
            self._tell(connection, {"welcome": rank})
            self._followers[rank] = connection
            self._calls[rank] = Dialer(self._connections, self._cluster.addresses[rank])
            self._seen.add(rank)
            self._deadline = min(self._deadline, time.monotonic() + patience)

    def _check_echo(self, connection: Connection, rank: int) -> None:
        sender = self._rank_of(connection)
        if sender == rank:
            self._end_call(rank)
        elif sender is not None:
            self._fail_address(rank, f"leads to rank {sender}")

    def _check_call(self, connection: Connection, rank: int, name: str) -> None:
        if name == self._name:
            if rank == 0:
                self._end_call(0)
            else:
                self._fail_address(rank, "leads to rank 0")
        elif rank == 0:
            # Another process with rank 0 calls the address that it takes for its own.
            self._fail(_same_rank(0, self._cluster.address, connection.peer))
            self._tell(connection, {"error": self._error})

    def _end_call(self, rank: int) -> None:
        if rank in self._calls:
            self._calls.pop(rank).close()

    def _fail(self, error: str | None) -> None:
        if self._error is None:
            self._error = error

    def _fail_address(self, rank: int, how: str) -> None:
        self._fail(
            "Every worker's address must lead to that worker. Received: "
            f"{self._cluster.addresses[rank]} for rank {rank}, which {how}. Correct "
            "the address, or open the port."
        )

    def _forget(self, connection: Connection) -> None:
        """A connection has ended: perhaps a follower's, which may start again."""
        rank = self._rank_of(connection)
        if rank is not None:
            del self._followers[rank]
            self._end_call(rank)

    def _rank_of(self, connection: Connection) -> int | None:
        followers = self._followers.items()
        return next((rank for rank, own in followers if own is connection), None)

    def _tell(self, connection: Connection, message: dict[str, Any]) -> None:
        connection.keep()
        connection.send(message)

    def _tell_all(self, verdict: dict[str, Any]) -> None:
        for rank, connection in self._followers.items():
            self._tell(connection, verdict)
            self._told.add(rank)

    def _waiting(self, missing: list[int], unreached: list[int]) -> str:
        rest = max(0.0, self._deadline - time.monotonic())
        ranks = missing or unreached
        named = ", ".join(f"{r} ({self._cluster.addresses[r]})" for r in ranks[:8])
        what = "to start" if missing else "to be reached at their own addresses"
        return (
            f"Rank 0 waits for {count(len(ranks), 'worker')} {what}: {named}. "
            f"{rest:.0f} s are left."
        )

    def _missing(self, missing: Sequence[int]) -> str:
        """Returns the error that names the missing ranks, and those that have died."""
        named = ", ".join(
            f"{rank} ({self._cluster.addresses[rank]}"
            + (", which came and ended again)" if rank in self._seen else ")")
            for rank in missing[:8]
        )
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        return (
            f"All {self._cluster.size} workers must start within {self._timeout:g} s "
            f"of each other. Received: missing ranks: {named}{more}. Look for an "
            "error in their logs, and check that rank 0's address "
            f"{self._cluster.addresses[0]} can be reached from there; a larger "
            "`start_timeout` allows more time."
        )


def _difference(
    own: Mapping[str, Any], others: Mapping[str, Any], rank: int
) -> str | None:
    """Returns the error that names the first fact in which another rank differs."""
    for name, mine in own.items():
        other = others.get(name)
        if other == mine:
            continue
        if name == "workers" and isinstance(other, list):
            mine, other = _contrast(mine, other)
            name = "the workers' addresses"
        return (
            "All workers must be started with the same cluster, versions and "
            f"settings. Received for {name}: {mine!r} on rank 0, {other!r} on "
            f"rank {rank}. Make them equal and start all workers again."
        )
    return None


def _contrast(own: list[Any], other: list[Any]) -> tuple[Any, Any]:
    """Returns in which item or length two lists, which may be long, differ."""
    if len(own) != len(other):
        return f"{len(own)} workers", f"{len(other)} workers"
    return next(pair for pair in zip(own, other, strict=True) if pair[0] != pair[1])


def _same_rank(rank: int, one: str, other: str) -> str:
    """Returns the error for two processes, on two hosts, with the same rank."""
    return (
        "Every worker needs its own index. Received: two processes with rank "
        f"{rank}, at {one} and {other}. Correct the task's index, or end the "
        "process that is left over from an earlier start."
    )
