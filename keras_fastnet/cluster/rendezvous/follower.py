"""The part of every rank but 0."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.rendezvous import limits
from keras_fastnet.cluster.rendezvous.call import Call
from keras_fastnet.cluster.rendezvous.notice import Notice
from keras_fastnet.cluster.rendezvous.switchboard import Switchboard
from keras_fastnet.errors import ClusterError


class Follower:
    """Reports to rank 0 and waits for its verdict."""

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
        self._node = node
        self._deadline = time.monotonic() + timeout
        self._leader = Call(board, cluster.addresses[0])
        self._welcome = False

    def follow(self) -> tuple[Any, list[str]]:
        """Returns what rank 0 proposed, and all workers' nodes."""
        notice = Notice()
        with contextlib.closing(self._leader):
            while True:
                rest = self._deadline - time.monotonic()
                notice.give(self._waiting(rest))
                self._reach_rank_0(rest)
                for line, message in self._board.messages():
                    from_leader = line is self._leader.line
                    match message:
                        case {"agreed": proposal, "nodes": nodes} if from_leader:
                            return proposal, nodes
                        case {"error": text} if from_leader:
                            raise ClusterError(text)
                        case {"welcome": _} if from_leader:
                            line.keep()
                            self._welcome = True
                        case None if from_leader and self._welcome:
                            raise self._lost("it closed the connection")
                        case {"call": _} if self._leader.line is not None:
                            self._leader.line.send({"echo": message})

    def _reach_rank_0(self, rest: float) -> None:
        if self._welcome:
            if rest < -limits.VERDICT_SECONDS:
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
            f"Received at {self._cluster.addresses[0]}: {self._leader.problem}. Look "
            "whether rank 0 is started and for an error in its log, and whether this "
            "address of it is right on every worker and can be reached from here; a "
            "larger `start_timeout` allows more time."
        )

    def _lost(self, how: str) -> ClusterError:
        return ClusterError(
            "Rank 0 must stay until all workers are there. Received by rank "
            f"{self._cluster.rank} from {self._cluster.addresses[0]}: {how}. Look for "
            "an error in rank 0's log."
        )

    def _waiting(self, rest: float) -> str:
        where = f"rank 0 ({self._cluster.addresses[0]})"
        what = (
            f"has reached {where} and waits for the other workers"
            if self._welcome
            else f"waits for {where}: {self._leader.problem}"
        )
        return f"Rank {self._cluster.rank} {what}. {max(0, rest):.0f} s are left."
