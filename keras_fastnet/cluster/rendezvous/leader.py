"""The part of rank 0 in a rendezvous."""

import dataclasses
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import mistakes
from keras_fastnet.cluster.rendezvous.connections import (
    ANSWER_SECONDS,
    Connection,
    Connections,
    WaitingLog,
)
from keras_fastnet.cluster.rendezvous.dialer import Dialer
from keras_fastnet.cluster.rendezvous.token_proof import (
    NO_TOKEN_AT_RANK_0,
    REFUSALS,
    token_error,
)
from keras_fastnet.errors import ClusterError
from keras_fastnet.text import count

_LOG = logging.getLogger(__name__)

# After an error rank 0 waits this long, to report it to workers that connect later.
LINGER_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class _Hello:
    """What a process that claims to be a follower has sent.

    Attributes:
        rank: The rank that it claims.
        node: Its machine.
        difference: The error if its facts are not those of rank 0; otherwise `None`.
        arrived: When it came, by the monotonic clock.
        until: When its own time to start is over.
    """

    rank: int
    node: str
    difference: str | None
    arrived: float
    until: float


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
        # Only the process at a rank's address learns the number of its call.
        self._call_ids = [secrets.token_hex(16) for _ in cluster.addresses]
        self._hellos: dict[Connection, _Hello] = {}
        self._followers: dict[int, Connection] = {}
        self._nodes = {0: node}
        # Those that have not been answered.
        self._calls: dict[int, Dialer] = {}
        self._seen: set[int] = set()
        self._told: set[int] = set()
        # By rank, or by the number of workers for all ranks outside of the cluster.
        self._refusals: dict[int, str] = {}
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
        self._call(0)
        try:
            self._collect()
            if self._error is not None:
                self._linger(self._error)
                raise ClusterError(self._error)
            nodes = [self._nodes[rank] for rank in range(self._cluster.size)]
            for connection in self._followers.values():
                connection.send({"agreed": proposal, "nodes": nodes})
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
            if not missing:
                return
            came = {hello.rank for hello in self._hellos.values()}
            absent = [rank for rank in missing if rank not in came]
            late = time.monotonic() - self._deadline
            if absent and late > 0:
                self._error = mistakes.missing(
                    self._cluster,
                    absent,
                    self._seen,
                    self._timeout,
                    list(self._refusals.values()),
                )
            # The last follower to connect has its own time to answer.
            elif late > ANSWER_SECONDS:
                self._fail(self._unreached(missing[0]))
            else:
                log.log(self._waiting(absent, missing))
                self._step()

    def _linger(self, error: str) -> None:
        end = time.monotonic() + LINGER_SECONDS
        for connection, hello in list(self._hellos.items()):
            self._tell(connection, hello.rank, error)
        for rank, connection in self._followers.items():
            self._tell(connection, rank, error)
        self._hellos.clear()
        followers = set(range(1, self._cluster.size))
        while not followers <= self._told and time.monotonic() < end:
            self._step()

    def _tell(self, connection: Connection, rank: int, error: str) -> None:
        connection.keep()
        connection.send({"error": error})
        self._told.add(rank)

    def _step(self) -> None:
        for rank, call in self._calls.items():
            call.step({"call": rank, "id": self._call_ids[rank]})
        for connection, message in self._connections.messages():
            match message:
                case None:
                    self._forget(connection)
                case {
                    "hello": int(rank),
                    "facts": {"workers": list(workers)} as facts,
                    "node": str(node),
                    "patience": int() | float() as patience,
                    # NaN, which Python's JSON allows, is not in the range.
                } if 0 < rank < len(workers) and 0 <= patience < 1e18:
                    self._greet(connection, rank, facts, node, patience)
                case {"echo": {"call": int(rank), "id": str(number)}}:
                    self._check_echo(connection, rank, number)
                case {"call": int(rank), "id": str(number)}:
                    self._check_call(connection, rank, number)
                case {"nonce": str(), "rank": int(rank)}:
                    connection.send({"refused": NO_TOKEN_AT_RANK_0})
                    self._note(connection, rank, token_error(NO_TOKEN_AT_RANK_0, rank))
                case {"refused": str(refusal), "rank": int(rank)} if (
                    refusal in REFUSALS
                ):
                    self._note(connection, rank, token_error(refusal, rank))
                case {"error": str()}:
                    own_call = self._calls.get(0)
                    if own_call is not None and connection is own_call.connection:
                        self._fail(self._same_rank(0, connection))
        self._give_up()

    def _greet(
        self,
        connection: Connection,
        rank: int,
        facts: Mapping[str, Any],
        node: str,
        patience: float,
    ) -> None:
        if connection in self._hellos or connection in self._followers.values():
            return
        now = time.monotonic()
        difference = mistakes.difference(self._facts, facts, rank)
        hello = _Hello(rank, node, difference, now, now + patience)
        twin = self._same_rank(rank, connection) if rank in self._followers else None
        if connection.proved:
            self._fail(difference or twin)
        if self._error is not None:
            self._tell(connection, rank, self._error)
        elif twin is not None:
            self._refuse(connection, rank, twin)
        elif rank >= self._cluster.size:
            self._refuse(connection, rank, difference or "")
        else:
            connection.expires = hello.until + 2 * ANSWER_SECONDS
            connection.send({"heard": rank})
            self._hellos[connection] = hello
            if rank not in self._calls:
                self._call(rank)

    def _call(self, rank: int) -> None:
        self._calls[rank] = Dialer(self._connections, self._cluster.addresses[rank])

    def _check_echo(self, connection: Connection, rank: int, number: str) -> None:
        if rank not in self._calls or number != self._call_ids[rank]:
            return
        hello = self._hellos.get(connection)
        sender = self._rank_of(connection) if hello is None else hello.rank
        if sender is None:
            return
        if sender != rank:
            self._fail_address(rank, f"leads to rank {sender}")
        elif hello is not None and hello.difference is not None:
            self._fail(hello.difference)
        elif hello is not None:
            self._welcome(connection, hello)

    def _welcome(self, connection: Connection, hello: _Hello) -> None:
        """Takes for a follower whom its address has led to."""
        rank = hello.rank
        self._end_call(rank)
        del self._hellos[connection]
        connection.keep()
        connection.send({"welcome": rank})
        self._followers[rank] = connection
        self._nodes[rank] = hello.node
        self._seen.add(rank)
        self._deadline = min(self._deadline, hello.until)
        for other, others in list(self._hellos.items()):
            if others.rank == rank:
                twin = self._same_rank(rank, other)
                self._refuse(other, rank, twin)
                if other.proved:
                    self._fail(twin)

    def _check_call(self, connection: Connection, rank: int, number: str) -> None:
        if 0 <= rank < self._cluster.size and number == self._call_ids[rank]:
            if rank == 0:
                self._end_call(0)
            else:
                self._fail_address(rank, "leads to rank 0")
        elif rank == 0:
            # Another process with rank 0 calls the address that it takes for its own.
            twin = self._same_rank(0, connection)
            self._refuse(connection, 0, twin)
            if connection.proved:
                self._fail(twin)

    def _refuse(self, connection: Connection, rank: int, error: str) -> None:
        """Reports an error to a process that may be no worker, and goes on."""
        self._hellos.pop(connection, None)
        connection.expires = time.monotonic() + ANSWER_SECONDS
        connection.send({"error": error})
        connection.finish()
        self._note(connection, rank, error)

    def _note(self, connection: Connection, rank: int, error: str) -> None:
        """Keeps an error in mind, for the case that a worker is missing in the end."""
        place = rank if 0 <= rank < self._cluster.size else self._cluster.size
        if place not in self._refusals:
            _LOG.warning("Rank 0 has refused %s: %s", connection.peer, error)
            self._refusals[place] = f"Rank 0 has refused {connection.peer}: {error}"

    def _give_up(self) -> None:
        """Refuses those to whom their addresses have not led in time."""
        now = time.monotonic()
        for connection, hello in list(self._hellos.items()):
            if hello.difference is not None and now > hello.arrived + ANSWER_SECONDS:
                self._refuse(connection, hello.rank, hello.difference)
            elif now > hello.until + ANSWER_SECONDS:
                self._refuse(connection, hello.rank, self._unreached(hello.rank))

    def _end_call(self, rank: int) -> None:
        if rank in self._calls:
            self._calls.pop(rank).close()

    def _fail(self, error: str | None) -> None:
        if self._error is None:
            self._error = error

    def _fail_address(self, rank: int, how: str) -> None:
        self._fail(mistakes.wrong_address(self._cluster, rank, how))

    def _unreached(self, rank: int) -> str:
        problem = self._calls[rank].problem if rank in self._calls else "no answer yet"
        return mistakes.wrong_address(
            self._cluster,
            rank,
            f"reached rank 0 but is not reached from there ({problem})",
        )

    def _forget(self, connection: Connection) -> None:
        """A connection has ended: perhaps a follower's, which may start again."""
        hello = self._hellos.pop(connection, None)
        rank = self._rank_of(connection)
        if rank is not None:
            del self._followers[rank]
        elif hello is not None:
            rank = hello.rank
        if rank is not None and all(h.rank != rank for h in self._hellos.values()):
            self._end_call(rank)

    def _rank_of(self, connection: Connection) -> int | None:
        followers = self._followers.items()
        return next((rank for rank, own in followers if own is connection), None)

    def _same_rank(self, rank: int, connection: Connection) -> str:
        known = self._followers.get(rank)
        one = self._cluster.addresses[rank] if known is None else known.peer
        return mistakes.same_rank(rank, one, connection.peer)

    def _waiting(self, absent: list[int], unreached: list[int]) -> str:
        rest = max(0.0, self._deadline - time.monotonic())
        ranks = absent or unreached
        named = ", ".join(f"{r} ({self._cluster.addresses[r]})" for r in ranks[:8])
        what = "to start" if absent else "to be reached at their own addresses"
        return (
            f"Rank 0 waits for {count(len(ranks), 'worker')} {what}: {named}. "
            f"{rest:.0f} s are left."
        )
