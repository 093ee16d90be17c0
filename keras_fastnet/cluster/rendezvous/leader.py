"""The part of rank 0."""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import limits, objections
from keras_fastnet.cluster.rendezvous.call import Call
from keras_fastnet.cluster.rendezvous.line import Line
from keras_fastnet.cluster.rendezvous.notice import Notice
from keras_fastnet.cluster.rendezvous.switchboard import Switchboard
from keras_fastnet.errors import ClusterError
from keras_fastnet.text import count


class Leader:
    """Collects the others and decides."""

    def __init__(
        self,
        cluster: Cluster,
        board: Switchboard,
        facts: Mapping[str, Any],
        timeout: float,
        node: str,
    ):
        self._cluster = cluster
        self._board = board
        self._facts = facts
        self._timeout = timeout
        # No worker waits longer than its own time, so the first to come counts.
        self._deadline = time.monotonic() + timeout
        self._name = secrets.token_hex(8)
        self._followers: dict[int, Line] = {}
        self._nodes = {0: node}
        # Those that were not answered yet.
        self._calls: dict[int, Call] = {}
        self._came: set[int] = set()
        self._told: set[int] = set()
        self._objection: str | None = None

    def lead(self, proposal: Any) -> tuple[Any, list[str]]:
        """Returns `proposal` and the nodes once all followers have been told."""
        if self._cluster.size == 1:
            return proposal, [self._nodes[0]]
        # Its own address may lead to another process that is rank 0 too.
        self._calls[0] = Call(self._board, self._cluster.address)
        try:
            self._collect()
            if self._objection is not None:
                self._linger(self._objection)
                raise ClusterError(self._objection)
            nodes = [self._nodes[rank] for rank in range(self._cluster.size)]
            self._tell_all({"agreed": proposal, "nodes": nodes})
        finally:
            for call in self._calls.values():
                call.close()
        return proposal, nodes

    def _collect(self) -> None:
        notice = Notice()
        while self._objection is None:
            missing = [
                r for r in range(1, self._cluster.size) if r not in self._followers
            ]
            unreached = [rank for rank in self._calls if rank > 0]
            if not missing and not unreached:
                return
            late = time.monotonic() - self._deadline
            if missing and late > 0:
                self._objection = objections.absence(
                    self._cluster, missing, self._came, self._timeout
                )
            # The last to come has its time to be called.
            elif late > limits.ANSWER_SECONDS:
                rank = unreached[0]
                problem = self._calls[rank].problem
                self._object_to_address(
                    rank, f"reached rank 0 but is not reached from there ({problem})"
                )
            else:
                notice.give(self._waiting(missing, unreached))
                self._step()

    def _linger(self, objection: str) -> None:
        end = time.monotonic() + limits.LINGER_SECONDS
        self._tell_all({"error": objection})
        everybody = set(range(1, self._cluster.size))
        while not everybody <= self._told and time.monotonic() < end:
            self._step()

    def _step(self) -> None:
        for rank, call in self._calls.items():
            call.step({"call": rank, "leader": self._name})
        for line, message in self._board.messages():
            match message:
                case None:
                    self._forget(line)
                case {
                    "hello": int(rank),
                    "facts": dict(facts),
                    "node": str(node),
                    "patience": int() | float() as patience,
                    # NaN, which JSON in Python knows, is not in the range.
                } if rank > 0 and 0 <= patience < 1e18:
                    self._greet(line, rank, facts, patience)
                    self._nodes[rank] = node
                case {"echo": {"call": int(rank), "leader": self._name}}:
                    self._note_echo(line, rank)
                case {"call": int(rank), "leader": str(name)}:
                    self._note_call(line, rank, name)
                case {"error": str(error)}:
                    if any(line is call.line for call in self._calls.values()):
                        self._object(error)

    def _greet(
        self, line: Line, rank: int, facts: Mapping[str, Any], patience: float
    ) -> None:
        self._object(objections.difference(self._facts, facts, rank))
        if rank in self._followers:
            peer = self._followers[rank].peer
            self._object(objections.twins(rank, peer, line.peer))
        if self._objection is not None:
            self._tell(line, {"error": self._objection})
            self._told.add(rank)
        elif rank < self._cluster.size:
            self._tell(line, {"welcome": rank})
            self._followers[rank] = line
            self._calls[rank] = Call(self._board, self._cluster.addresses[rank])
            self._came.add(rank)
            self._deadline = min(self._deadline, time.monotonic() + patience)

    def _note_echo(self, line: Line, rank: int) -> None:
        sender = self._rank_of(line)
        if sender == rank:
            self._answered(rank)
        elif sender is not None:
            self._object_to_address(rank, f"leads to rank {sender}")

    def _note_call(self, line: Line, rank: int, name: str) -> None:
        if name == self._name:
            if rank == 0:
                self._answered(0)
            else:
                self._object_to_address(rank, "leads to rank 0")
        elif rank == 0:
            # Another rank 0 calls the address that it takes for its own.
            self._object(objections.twins(0, self._cluster.address, line.peer))
            self._tell(line, {"error": self._objection})

    def _answered(self, rank: int) -> None:
        if rank in self._calls:
            self._calls.pop(rank).close()

    def _object(self, objection: str | None) -> None:
        if self._objection is None:
            self._objection = objection

    def _object_to_address(self, rank: int, how: str) -> None:
        self._object(objections.wrong_address(self._cluster, rank, how))

    def _forget(self, line: Line) -> None:
        """A connection ended: perhaps that of a follower, which may come again."""
        rank = self._rank_of(line)
        if rank is not None:
            del self._followers[rank]
            self._answered(rank)

    def _rank_of(self, line: Line) -> int | None:
        return next((r for r, other in self._followers.items() if other is line), None)

    def _tell(self, line: Line, message: dict[str, Any]) -> None:
        line.keep()
        line.send(message)

    def _tell_all(self, verdict: dict[str, Any]) -> None:
        for rank, line in self._followers.items():
            self._tell(line, verdict)
            self._told.add(rank)

    def _waiting(self, missing: list[int], unreached: list[int]) -> str:
        rest = max(0.0, self._deadline - time.monotonic())
        waited_for = missing or unreached
        named = ", ".join(f"{r} ({self._cluster.addresses[r]})" for r in waited_for[:8])
        what = "to start" if missing else "to be reached at their own addresses"
        return (
            f"Rank 0 waits for {count(len(waited_for), 'worker')} {what}: {named}. "
            f"{rest:.0f} s are left."
        )
