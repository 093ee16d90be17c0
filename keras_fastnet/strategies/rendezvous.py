"""All workers meet before TensorFlow's servers start.

TensorFlow waits for an absent worker without end and without a word. So the
workers first meet here, over plain TCP on the addresses that TensorFlow will use:
rank 0 collects the others, checks that all were started with the same cluster, and
tells everybody what they agreed on, or who is missing.
"""

import contextlib
import errno
import json
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from keras_fastnet.errors import ClusterError
from keras_fastnet.strategies.cluster import Cluster, split_address

_RETRY_SECONDS = 0.2
# A worker that is there answers at once.
_ANSWER_SECONDS = 5.0
# A follower waits this much longer than rank 0 collects, to hear who is missing.
_VERDICT_SECONDS = 10.0


def meet(
    cluster: Cluster, facts: Mapping[str, Any], proposal: Any, timeout: float
) -> Any:
    """Waits until every worker of the cluster is there.

    Args:
        cluster: The workers and this worker's rank.
        facts: What must be equal on all workers, such as versions. JSON values.
        proposal: What rank 0 tells the others, such as a seed. A JSON value.
        timeout: Seconds that rank 0 waits for the others, and they for it.

    Returns:
        Rank 0's `proposal`, on every rank.

    Raises:
        ClusterError: A port is taken, somebody did not come in time, or workers
            differ in their cluster or facts. Every worker that came gets it.
    """
    deadline = time.monotonic() + timeout
    facts = {"workers": list(cluster.addresses), **facts}
    with _listen(cluster) as listener:
        if cluster.rank == 0:
            return _lead(cluster, listener, facts, proposal, deadline, timeout)
        return _follow(cluster, listener, facts, deadline, timeout)


@contextlib.contextmanager
def _listen(cluster: Cluster) -> Iterator[socket.socket]:
    """Holds this worker's own port, as TensorFlow's server will."""
    _, port = split_address(cluster.address)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with listener:
        # As gRPC does; it also lets a launcher keep the port reserved.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen(cluster.size)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise ClusterError(
                f"Rank {cluster.rank} must be able to listen on its own port. "
                f"Received: {cluster.address}, {error.strerror}. Choose another "
                "port in TF_CONFIG on all workers, or end the process that has it "
                f"(`ss -ltnp 'sport = :{port}'` shows it)."
            ) from error
        yield listener


def _lead(
    cluster: Cluster,
    listener: socket.socket,
    facts: Mapping[str, Any],
    proposal: Any,
    deadline: float,
    timeout: float,
) -> Any:
    with contextlib.ExitStack() as stack:
        followers: dict[int, _Line] = {}
        while len(followers) < cluster.size - 1:
            line = _accept(listener, deadline)
            if line is None:
                break
            stack.enter_context(line)
            # A port scanner or a health probe is no worker.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                hello = line.receive(time.monotonic() + _ANSWER_SECONDS)
                followers[int(hello["rank"])] = line
                line.facts = hello["facts"]
        verdict = {"error": _objection(cluster, facts, followers, deadline, timeout)}
        if verdict["error"] is None:
            verdict["agreed"] = proposal
        for line in followers.values():
            with contextlib.suppress(OSError):
                line.send(verdict)
        if verdict["error"] is not None:
            raise ClusterError(verdict["error"])
        return proposal


def _objection(
    cluster: Cluster,
    facts: Mapping[str, Any],
    followers: "Mapping[int, _Line]",
    deadline: float,
    timeout: float,
) -> str | None:
    for rank, line in sorted(followers.items()):
        for name, ours in facts.items():
            if line.facts.get(name) != ours:
                return (
                    "All workers must be started with the same cluster and versions. "
                    f"Received for `{name}`: {ours!r} on rank 0, "
                    f"{line.facts.get(name)!r} on rank {rank}."
                )
    missing = sorted(set(range(1, cluster.size)) - set(followers))
    if missing:
        named = ", ".join(f"{rank} ({cluster.addresses[rank]})" for rank in missing)
        return (
            f"All {cluster.size} workers must start within {timeout:g} s of each "
            f"other. Missing rank(s): {named}. Look for an error in their logs, and "
            f"whether rank 0's address {cluster.addresses[0]} can be reached from "
            "there; `start_timeout` allows more time."
        )
    for rank, line in sorted(followers.items()):
        address = cluster.addresses[rank]
        token = secrets.token_hex(8)
        try:
            with _connect(address, deadline) as back:
                back.send(token)
                echo = line.receive(time.monotonic() + _ANSWER_SECONDS)
        except (OSError, ValueError) as error:
            echo = error
        if echo != token:
            return (
                "Every worker's address must lead to that worker. Received: "
                f"{address} for rank {rank}, which reached rank 0 but is not "
                f"reached there ({echo}). Correct TF_CONFIG, or open the port."
            )
    return None


def _follow(
    cluster: Cluster,
    listener: socket.socket,
    facts: Mapping[str, Any],
    deadline: float,
    timeout: float,
) -> Any:
    leader = cluster.addresses[0]
    try:
        line = _connect(leader, deadline)
    except OSError as error:
        raise ClusterError(
            f"Rank {cluster.rank} must reach rank 0 within {timeout:g} s. "
            f"Received: {error} at {leader}. Is rank 0 started, and its address "
            "the same in every worker's TF_CONFIG? `start_timeout` allows more time."
        ) from error
    with line:
        try:
            line.send({"rank": cluster.rank, "facts": facts})
            patience = deadline + _VERDICT_SECONDS
            answer = _verdict(line, listener, patience)
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"Rank 0 at {leader} must answer within {timeout:g} s. Received by "
                f"rank {cluster.rank}: {error}. Look for an error in rank 0's log."
            ) from error
    if answer["error"] is not None:
        raise ClusterError(answer["error"])
    return answer["agreed"]


def _verdict(line: "_Line", listener: socket.socket, deadline: float) -> Any:
    """Answers rank 0's call to this worker's own address, then hears the result."""
    listener.settimeout(_RETRY_SECONDS)
    while time.monotonic() < deadline:
        if line.waiting():
            return line.receive(deadline)
        back = _accept(listener, time.monotonic() + _RETRY_SECONDS)
        if back is not None:
            with back:
                line.send(back.receive(time.monotonic() + _ANSWER_SECONDS))
    raise TimeoutError("no answer")


class _Line:
    """A connection that carries one JSON value to a line."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._unread = b""
        self.facts: Mapping[str, Any] = {}

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, value: Any) -> None:
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, deadline: float) -> Any:
        while b"\n" not in self._unread:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = self._socket.recv(65536)
            if not chunk:
                raise ConnectionError("the connection was closed")
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def waiting(self) -> bool:
        self._socket.settimeout(0.0)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) is not None
        except BlockingIOError:
            return False


def _accept(listener: socket.socket, deadline: float) -> _Line | None:
    listener.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        return _Line(listener.accept()[0])
    except TimeoutError:
        return None


def _connect(address: str, deadline: float) -> _Line:
    """Tries until the deadline: workers and their host names come up in any order."""
    while True:
        try:
            connection = socket.create_connection(
                split_address(address), timeout=_ANSWER_SECONDS
            )
            # While nobody listens, TCP may connect a local port to itself.
            if connection.getsockname() != connection.getpeername():
                return _Line(connection)
            connection.close()
        except OSError:
            if time.monotonic() + _RETRY_SECONDS > deadline:
                raise
        time.sleep(_RETRY_SECONDS)
