"""All workers meet before TensorFlow's servers start.

TensorFlow waits for a missing worker without end and without a message. So the workers
first meet here, over plain TCP on the addresses that TensorFlow will use:

1. Every worker listens at its address, and sends its rank and a random id to each
   process that connects.
2. Every rank but 0 connects to rank 0 and sends a hello: its rank, its id and its
   facts, which are the cluster as it is described there, versions and settings.
3. Rank 0 connects to the address of that rank, and compares the id: the address must
   lead to the process that sent the hello. Then it compares the facts.
4. Rank 0 sends to all what they agreed on, or what is wrong.

Each message is a JSON object on one line, with a limit of length and of time. Any other
bytes close the connection that they came from, and have no other effect. A hello from a
process that the rank's address does not lead to is answered with the error. Rank 0 logs
it, and raises it only if a worker is missing in the end.
"""

import contextlib
import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from keras_fastnet.cluster import rendezvous_errors as errors
from keras_fastnet.cluster.cluster_spec import Cluster, split_address
from keras_fastnet.cluster.ports import listen
from keras_fastnet.cluster.rendezvous_messages import (
    ANSWER_SECONDS,
    Hello,
    Introduction,
    parse_hello,
    read,
    read_introduction,
    send,
)
from keras_fastnet.errors import ClusterError

_LOG = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
# A worker waits this much longer than `timeout` for rank 0 to say what is wrong.
VERDICT_SECONDS = 15.0
# After an error a worker stays this long for those that connect later.
LINGER_SECONDS = 5.0
# When rank 0 logs which ranks it waits for: first, and then repeatedly.
FIRST_LOG_SECONDS = 10.0
LOG_SECONDS = 60.0
# Further connections are closed; a worker among them connects again.
MOST_STRANGERS = 512
_TICK_SECONDS = 0.1


def meet(
    cluster: Cluster,
    facts: Mapping[str, Any],
    proposal: Any,
    timeout: float,
    node: str,
) -> tuple[Any, list[str]]:
    """Waits until all workers of the cluster have started.

    Args:
        cluster: The workers' addresses and this worker's rank.
        facts: Values that must be equal on all workers, such as versions. JSON values.
        proposal: What rank 0 sends to the other ranks, such as a seed. A JSON value.
        timeout: Seconds within which all workers must have started, counted from the
            first.
        node: The name of the machine that this worker runs on.

    Returns:
        Rank 0's `proposal` and the nodes of all workers, by rank, on every rank.

    Raises:
        ClusterError: If a port is in use, a worker does not start in time, an address
            leads to another worker, or workers differ in their cluster or facts. All
            connected workers raise it, at most 20 seconds after `timeout`.
        ValueError: If `timeout` is not a positive, finite number.
    """
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(
            "`start_timeout` must be a positive, finite number of seconds. "
            f"Received: {timeout!r}."
        )
    facts = {"workers": list(cluster.addresses), **facts}
    if cluster.rank:
        with _Follower(cluster, facts, timeout, node) as follower:
            return follower.follow()
    with _Leader(cluster, facts, timeout, node) as leader:
        return leader.lead(proposal)


class _Worker:
    """One worker's part: listens, and introduces itself to all that connect.

    Leaving the context ends its threads and closes its connections.
    """

    def __init__(
        self, cluster: Cluster, facts: dict[str, Any], timeout: float, node: str
    ):
        self._cluster = cluster
        self._facts = facts
        self._timeout = timeout
        self._node = node
        self._deadline = time.monotonic() + timeout
        self._id = secrets.token_hex(16)
        self._left = False
        self._threads: list[threading.Thread] = []

    def __enter__(self):
        self._listener = listen(self._cluster)
        self._listener.settimeout(_TICK_SECONDS)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        self._accepting.join()
        self._listener.close()
        end = time.monotonic() + ANSWER_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _accept(self) -> None:
        while not self._left:
            try:
                opened, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                # Such as too many open files.
                time.sleep(_TICK_SECONDS)
                continue
            self._threads = [each for each in self._threads if each.is_alive()]
            if len(self._threads) > MOST_STRANGERS + self._cluster.size:
                opened.close()
                continue
            # IPv4 addresses may be written as IPv6 ones.
            peer = address[0].removeprefix("::ffff:")
            self._run(self._answer, opened, peer)

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _answer(self, opened: socket.socket, peer: str) -> None:
        with contextlib.suppress(OSError, ValueError), opened:
            opened.settimeout(ANSWER_SECONDS)
            send(opened, {"rank": self._cluster.rank, "id": self._id})
            self._talk(opened, peer)

    def _talk(self, opened: socket.socket, peer: str) -> None:
        """Goes on after the introduction; only rank 0 has more to say."""


class _Follower(_Worker):
    """The part of all ranks but 0."""

    def follow(self) -> tuple[Any, list[str]]:
        """Returns rank 0's proposal and the nodes of all workers.

        Raises:
            ClusterError: If rank 0 is not reached or is lost, or reports an error.
        """
        leader = split_address(self._cluster.addresses[0])
        next_log = time.monotonic() + FIRST_LOG_SECONDS
        while True:
            try:
                with socket.create_connection(leader, ANSWER_SECONDS) as opened:
                    found = read_introduction(opened)
                    if found.rank:
                        # Until the others have found out, too.
                        time.sleep(LINGER_SECONDS)
                        how = f"leads to rank {found.rank}"
                        raise ClusterError(errors.wrong_address(self._cluster, 0, how))
                    self._greet(opened)
                    return self._verdict(opened)
            except (OSError, ValueError) as error:
                problem = str(error)
            rest = self._deadline - time.monotonic()
            if rest < 0:
                text = errors.unreached(self._cluster, self._timeout, problem)
                raise ClusterError(text)
            if time.monotonic() > next_log:
                next_log = time.monotonic() + LOG_SECONDS
                _LOG.warning(
                    "Rank %d waits for rank 0 (%s): %s. %.0f s are left.",
                    *(self._cluster.rank, self._cluster.addresses[0], problem, rest),
                )
            time.sleep(RETRY_SECONDS)

    def _greet(self, leader: socket.socket) -> None:
        rest = max(0.0, self._deadline - time.monotonic())
        hello = Hello(self._cluster.rank, self._id, self._facts, self._node, rest)
        send(leader, hello._asdict())

    def _verdict(self, leader: socket.socket) -> tuple[Any, list[str]]:
        rest = self._deadline - time.monotonic() + VERDICT_SECONDS
        try:
            message = read(leader, rest)
        except TimeoutError:
            self._lost("it gave no verdict")
        except (OSError, ValueError):
            self._lost("it closed the connection")
        match message:
            case {"error": str(text)}:
                raise ClusterError(text)
            case {"agreed": proposal, "nodes": list(nodes)}:
                return proposal, [str(node) for node in nodes]
        self._lost("it sent something else than a verdict")

    def _lost(self, how: str) -> NoReturn:
        raise ClusterError(errors.lost(self._cluster, how)) from None


class _Leader(_Worker):
    """The part of rank 0: waits for the others, compares their facts and decides."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._changed = threading.Condition()
        self._followers: dict[int, socket.socket] = {}
        self._nodes = {0: self._node}
        # Ranks that have sent a hello, and why their addresses do not lead to them.
        self._came: dict[int, str] = {}
        self._told: set[int] = set()
        self._refusals: dict[str, None] = {}
        self._error: str | None = None

    def __exit__(self, *exception: object) -> None:
        followers = list(self._followers.values())
        for how in (socket.SHUT_WR, socket.SHUT_RDWR):
            for follower in followers:
                with contextlib.suppress(OSError):
                    follower.shutdown(how)
            # Those that have read the verdict close their connections.
            super().__exit__(*exception)

    def lead(self, proposal: Any) -> tuple[Any, list[str]]:
        """Returns `proposal` and all nodes, after it has sent them to all followers.

        Args:
            proposal: A JSON value for all workers.

        Raises:
            ClusterError: If a worker is missing, or described or started wrongly.
        """
        if self._cluster.size == 1:
            return proposal, [self._node]
        self._run(self._check_own_address)
        followers = set(range(1, self._cluster.size))
        with self._changed:
            self._wait_for(followers)
            nodes = [self._nodes.get(rank, "") for rank in range(self._cluster.size)]
            verdict: dict[str, Any] = {"error": self._error}
            if self._error is None:
                verdict = {"agreed": proposal, "nodes": nodes}
            for rank, follower in self._followers.items():
                self._tell(follower, rank, verdict)
            if self._error is not None:
                self._changed.wait_for(lambda: followers <= self._told, LINGER_SECONDS)
                raise ClusterError(self._error)
        return proposal, nodes

    def _wait_for(self, followers: set[int]) -> None:
        next_log = time.monotonic() + FIRST_LOG_SECONDS
        while self._error is None and followers - set(self._followers):
            missing = sorted(followers - set(self._followers))
            absent = [rank for rank in missing if rank not in self._came]
            now = time.monotonic()
            # The last one to connect has its own time to answer.
            if now > self._deadline + (0.0 if absent else ANSWER_SECONDS):
                self._error = self._no_meeting(absent, missing)
                return
            if now > next_log:
                next_log = now + LOG_SECONDS
                _LOG.warning(
                    "Rank 0 waits for %s. %.0f s are left.",
                    errors.named(self._cluster, absent or missing),
                    max(0.0, self._deadline - now),
                )
            self._changed.wait(_TICK_SECONDS)

    def _no_meeting(self, absent: list[int], missing: list[int]) -> str:
        if not absent:
            problem = self._came[missing[0]]
            how = f"reached rank 0 but is not reached from there ({problem})"
            return errors.wrong_address(self._cluster, missing[0], how)
        return errors.missing(
            self._cluster, absent, self._timeout, list(self._refusals)
        )

    def _talk(self, opened: socket.socket, peer: str) -> None:
        hello = parse_hello(read(opened, ANSWER_SECONDS))
        error = self._mistake(hello, peer)
        with self._changed:
            if error is not None or self._error is not None:
                self._tell(opened, hello.rank, {"error": self._error or error})
                return
            self._followers[hello.rank] = opened
            self._nodes[hello.rank] = hello.node
            # No worker waits longer than its own time.
            self._deadline = min(self._deadline, time.monotonic() + hello.patience)
            self._changed.notify_all()
        # The follower closes the connection: after the verdict, or as it ends.
        opened.settimeout(None)
        with contextlib.suppress(OSError):
            opened.recv(1)
        with self._changed:
            if self._followers.get(hello.rank) is opened:
                del self._followers[hello.rank]
                self._came.pop(hello.rank, None)

    def _mistake(self, hello: Hello, peer: str) -> str | None:
        """Returns what is wrong with a worker; `None` if it may take part."""
        difference = errors.difference(self._facts, hello.facts, hello.rank)
        rank = hello.rank
        found = None
        if rank < self._cluster.size:
            self._came.setdefault(rank, "no answer yet")
            found = self._process_at(rank, once=difference is not None)
        if found is not None and found.id == hello.id:
            return difference and self._fail(difference)
        if found is not None and found.rank != rank:
            how = f"leads to rank {found.rank}"
            return self._fail(errors.wrong_address(self._cluster, rank, how))
        if found is not None and difference is None:
            difference = errors.same_rank(rank, self._cluster.addresses[rank], peer)
        if difference is None:
            return self._error or "Rank 0 does not wait any more."
        self._came.pop(rank, None)
        refusal = f"Rank 0 has refused {peer}: {difference}"
        if refusal not in self._refusals:
            _LOG.warning("%s", refusal)
            self._refusals[refusal] = None
        return difference

    def _process_at(self, rank: int, once: bool = False) -> Introduction | None:
        """Returns who answers at a rank's address; `None` if no worker does in time."""
        address = split_address(self._cluster.addresses[rank])
        while not self._left and self._error is None:
            try:
                with socket.create_connection(address, ANSWER_SECONDS) as opened:
                    return read_introduction(opened)
            except (OSError, ValueError) as error:
                self._came[rank] = str(error)
            if once:
                return None
            time.sleep(RETRY_SECONDS)
        return None

    def _check_own_address(self) -> None:
        """Looks for another process with rank 0, on another host."""
        found = self._process_at(0)
        if found is None or found.id == self._id:
            return
        how = f"leads to rank {found.rank}"
        if found.rank == 0:
            how = "leads to another process with rank 0"
        self._fail(errors.wrong_address(self._cluster, 0, how))

    def _fail(self, error: str) -> str:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
        return error

    def _tell(self, opened: socket.socket, rank: int, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            send(opened, message)
            # Closing at once may discard the message before it is read.
            opened.shutdown(socket.SHUT_WR)
        self._told.add(rank)
        self._changed.notify_all()
