"""All workers meet before TensorFlow's servers start.

TensorFlow waits for an absent worker without end and without a word. So the
workers first meet here, over plain TCP on the addresses that TensorFlow will use.
Rank 0 leads, the others follow:

1. A follower connects to rank 0 and says its rank and its facts: the cluster as it
   knows it, and versions. Rank 0 welcomes it, after which it need not try again.
2. Rank 0 calls the follower on the follower's own address with a token, which the
   follower must send back: its address leads to it and to nobody else.
3. Rank 0 tells everybody what they agreed on, or what is wrong.

Each message is a JSON value on a line of its own. Whatever else connects to a port,
such as a health probe, is dropped.
"""

import contextlib
import errno
import json
import logging
import math
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from keras_fastnet.errors import ClusterError
from keras_fastnet.strategies.cluster import Cluster, split_address

_LOG = logging.getLogger(__name__)

_TICK_SECONDS = 0.05
_RETRY_SECONDS = 0.2
# A process that is there answers at once, since none does anything else meanwhile.
_ANSWER_SECONDS = 5.0
# A follower waits this much longer than the meeting lasts, to hear who is missing.
_VERDICT_SECONDS = 15.0
# Rank 0 stays this long after it found an error, to tell those that come next.
_LINGER_SECONDS = 5.0
# An earlier process may need a moment to let go of the port.
_PORT_SECONDS = 2.0
# When a worker that waits says so: first, and then again and again.
_FIRST_NOTICE_SECONDS = 10.0
_NOTICE_SECONDS = 60.0
# The list of some 30,000 workers; more than that on one line is no worker.
_LONGEST_LINE = 1 << 20


def meet(
    cluster: Cluster, facts: Mapping[str, Any], proposal: Any, timeout: float
) -> Any:
    """Waits until every worker of the cluster is there.

    Args:
        cluster: The workers and this worker's rank.
        facts: What must be equal on all workers, such as versions. JSON values.
        proposal: What rank 0 tells the others, such as a seed. A JSON value.
        timeout: Seconds within which all workers must have come, counted from the
            first.

    Returns:
        Rank 0's `proposal`, on every rank.

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
    deadline = time.monotonic() + timeout
    facts = {"workers": list(cluster.addresses), **facts}
    with _listen(cluster) as listener, _Switchboard(listener) as board:
        if cluster.rank == 0:
            return _Leader(cluster, board, facts, deadline, timeout).lead(proposal)
        return _Follower(cluster, board, facts, deadline, timeout).follow()


class _Leader:
    """Rank 0's part: collects the others and decides."""

    def __init__(
        self,
        cluster: Cluster,
        board: "_Switchboard",
        facts: Mapping[str, Any],
        deadline: float,
        timeout: float,
    ):
        self._cluster = cluster
        self._board = board
        self._facts = facts
        self._timeout = timeout
        self._notice = _Notice()
        self._name = secrets.token_hex(8)
        self._followers: dict[int, _Line] = {}
        self._names: dict[int, str] = {}
        self._deadlines = {0: deadline}
        self._calls: dict[int, _Call] = {}
        self._told: set[int] = set()
        self._left: set[int] = set()
        self._objection: str | None = None

    def lead(self, proposal: Any) -> Any:
        """Returns `proposal` once all followers have heard it."""
        if self._cluster.size > 1:
            with contextlib.ExitStack() as stack:
                stack.callback(self._hang_up)
                # Its own address may lead to another process that is rank 0 too.
                self._calls[0] = _Call(self._cluster.addresses[0])
                self._collect()
                if self._objection is not None:
                    self._linger()
                    raise ClusterError(self._objection)
                self._tell_all({"agreed": proposal})
        return proposal

    @property
    def _deadline(self) -> float:
        """That of whoever came first and is still there."""
        return min(self._deadlines.values())

    def _collect(self) -> None:
        while self._objection is None:
            missing = self._missing()
            unreached = [r for r in self._followers if not self._calls[r].answered]
            if not missing and not unreached:
                return
            now = time.monotonic()
            if missing and now > self._deadline:
                self._objection = self._absence(missing)
            # The last to come has its time to be called.
            elif unreached and now > max(
                self._deadline,
                *(self._calls[rank].started + _ANSWER_SECONDS for rank in unreached),
            ):
                self._objection = self._unreachable(unreached[0])
            else:
                self._say_what_it_waits_for(missing, unreached)
                self._step()

    def _linger(self) -> None:
        end = time.monotonic() + _LINGER_SECONDS
        self._tell_all({"error": self._objection})
        everybody = set(range(1, self._cluster.size))
        while not everybody <= self._told and time.monotonic() < end:
            self._step()

    def _step(self) -> None:
        for rank, call in self._calls.items():
            call.step(
                self._board, {"call": rank, "token": call.token, "name": self._name}
            )
        for line, message in self._board.messages():
            if not isinstance(message, dict):
                self._forget(line)
            elif "hello" in message:
                self._greet(line, message)
            elif "echo" in message:
                self._note_echo(line, message["echo"])
            elif "call" in message:
                self._note_call(line, message)
            elif "error" in message and line is self._calls[0].line:
                self._object(str(message["error"]))

    def _greet(self, line: "_Line", hello: Mapping[str, Any]) -> None:
        rank, name, facts = hello["hello"], hello.get("name"), hello.get("facts")
        patience = hello.get("patience")
        if (
            type(rank) is not int
            or rank < 0
            or not isinstance(name, str)
            or not isinstance(facts, dict)
            or not isinstance(patience, int | float)
            # Nor may it be NaN, which JSON in Python knows.
            or not abs(patience) < 1e18
        ):
            self._board.drop(line)
            return
        line.keep()
        difference = self._difference(rank, facts)
        earlier = self._followers.get(rank)
        if difference is not None:
            self._object(difference)
        elif not 0 < rank < self._cluster.size:
            self._board.drop(line)
            return
        elif earlier is not None and self._names[rank] != name and earlier.alive():
            self._object(_twins(rank, earlier.peer, line.peer))
        if self._objection is not None:
            self._tell(line, {"error": self._objection})
            self._told.add(rank)
            return
        if earlier is not None:
            self._forget(earlier)
        self._tell(line, {"welcome": rank})
        self._followers[rank] = line
        self._names[rank] = name
        self._calls[rank] = _Call(self._cluster.addresses[rank])
        self._deadlines[rank] = time.monotonic() + patience

    def _note_echo(self, line: "_Line", token: Any) -> None:
        for rank, call in self._calls.items():
            if call.token != token:
                continue
            if self._followers.get(rank) is line:
                call.answered = True
                call.close(self._board)
                return
            for other, follower in self._followers.items():
                if follower is line:
                    self._object(self._misled(rank, other))

    def _note_call(self, line: "_Line", call: Mapping[str, Any]) -> None:
        rank, name = call["call"], call.get("name")
        if not isinstance(name, str) or type(rank) is not int:
            self._board.drop(line)
        elif name == self._name:
            if rank == 0:
                self._calls[0].answered = True
                self._calls[0].close(self._board)
            else:
                self._object(self._misled(rank, 0))
            self._board.drop(line)
        elif rank == 0:
            # Another rank 0 calls the address that it takes for its own.
            line.keep()
            self._object(_twins(0, self._cluster.address, line.peer))
            self._tell(line, {"error": self._objection})
        else:
            self._board.drop(line)

    def _object(self, objection: str) -> None:
        if self._objection is None:
            self._objection = objection

    def _forget(self, line: "_Line") -> None:
        """A connection ended: perhaps that of a follower, which may come again."""
        self._board.drop(line)
        for rank, follower in list(self._followers.items()):
            if follower is line:
                del self._followers[rank], self._deadlines[rank]
                self._calls.pop(rank).close(self._board)
                self._left.add(rank)

    def _missing(self) -> list[int]:
        return [r for r in range(1, self._cluster.size) if r not in self._followers]

    def _tell(self, line: "_Line", message: Any) -> None:
        with contextlib.suppress(OSError):
            line.send(message)

    def _tell_all(self, verdict: Any) -> None:
        for rank, line in self._followers.items():
            self._tell(line, verdict)
            self._told.add(rank)

    def _hang_up(self) -> None:
        for call in self._calls.values():
            call.close(self._board)
        # Closing at once could overtake a verdict that is on its way: followers close
        # first.
        end = time.monotonic() + _ANSWER_SECONDS
        self._board.finish()
        while self._board.busy() and time.monotonic() < end:
            for line, message in self._board.messages():
                if not isinstance(message, dict):
                    self._board.drop(line)

    def _difference(self, rank: int, facts: Mapping[str, Any]) -> str | None:
        for name, ours in self._facts.items():
            theirs = facts.get(name)
            if theirs == ours:
                continue
            if name == "workers" and isinstance(theirs, list):
                ours, theirs = _contrast(ours, theirs)
                name = "the workers in TF_CONFIG"
            return (
                "All workers must be started with the same cluster, versions and "
                f"settings. Received for {name}: {ours!r} on rank 0, {theirs!r} on "
                f"rank {rank}. Make them equal and start all workers again."
            )
        return None

    def _absence(self, missing: list[int]) -> str:
        named = ", ".join(
            f"{rank} ({self._cluster.addresses[rank]}"
            + (", which came and ended again)" if rank in self._left else ")")
            for rank in missing[:8]
        )
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        return (
            f"All {self._cluster.size} workers must start within {self._timeout:g} s "
            f"of each other. Received: missing rank(s) {named}{more}. Look for an "
            "error in their logs, and whether rank 0's address "
            f"{self._cluster.addresses[0]} can be reached from there; a larger "
            "`start_timeout` allows more time."
        )

    def _unreachable(self, rank: int) -> str:
        return (
            "Every worker's address must lead to that worker. Received: "
            f"{self._cluster.addresses[rank]} for rank {rank}, which reached rank 0 "
            f"but is not reached from there ({self._calls[rank].problem}). Correct "
            "the address in TF_CONFIG, or open the port."
        )

    def _misled(self, rank: int, other: int) -> str:
        return (
            "Every worker's address must lead to that worker. Received: "
            f"{self._cluster.addresses[rank]} for rank {rank}, which leads to rank "
            f"{other}. Correct the address in TF_CONFIG."
        )

    def _say_what_it_waits_for(self, missing: list[int], unreached: list[int]) -> None:
        rest = max(0.0, self._deadline - time.monotonic())
        waited_for = missing or unreached
        named = ", ".join(f"{r} ({self._cluster.addresses[r]})" for r in waited_for[:8])
        what = "to start" if missing else "to be reached at their own addresses"
        self._notice.give(
            f"Rank 0 waits for {len(waited_for)} worker(s) {what}: {named}. "
            f"{rest:.0f} s are left."
        )


class _Follower:
    """The part of every rank but 0: reports to rank 0 and waits for its verdict."""

    def __init__(
        self,
        cluster: Cluster,
        board: "_Switchboard",
        facts: Mapping[str, Any],
        deadline: float,
        timeout: float,
    ):
        self._cluster = cluster
        self._board = board
        self._facts = facts
        self._deadline = deadline
        self._timeout = timeout
        self._notice = _Notice()
        self._name = secrets.token_hex(8)
        self._leader = _Call(cluster.addresses[0])

    def follow(self) -> Any:
        """Returns what rank 0 proposed."""
        try:
            while True:
                now = time.monotonic()
                if self._leader.answered:
                    if now > self._deadline + _VERDICT_SECONDS:
                        raise self._lost("it gave no verdict")
                elif now > self._deadline:
                    raise self._unreached()
                self._say_what_it_waits_for()
                self._leader.step(self._board, self._hello(now))
                for line, message in self._board.messages():
                    if line is self._leader.line:
                        verdict = self._hear(message)
                        if verdict is not None:
                            return verdict["agreed"]
                    else:
                        self._answer_call(line, message)
        finally:
            self._leader.close(self._board)

    def _hello(self, now: float) -> Mapping[str, Any]:
        return {
            "hello": self._cluster.rank,
            "name": self._name,
            "facts": self._facts,
            "patience": self._deadline - now,
        }

    def _hear(self, message: Any) -> Mapping[str, Any] | None:
        if isinstance(message, dict):
            if "error" in message:
                raise ClusterError(message["error"])
            if "agreed" in message:
                return message
            if "welcome" in message:
                self._leader.answered = True
                return None
        if self._leader.answered:
            raise self._lost("it closed the connection")
        # A proxy may accept for a rank 0 that is not there yet.
        self._leader.again(self._board, "what answers there is not rank 0")
        return None

    def _answer_call(self, line: "_Line", message: Any) -> None:
        known = isinstance(message, dict) and "token" in message
        if known and self._leader.line is not None:
            with contextlib.suppress(OSError):
                self._leader.line.send({"echo": message["token"]})
        self._board.drop(line)

    def _unreached(self) -> ClusterError:
        return ClusterError(
            f"Rank {self._cluster.rank} must reach rank 0 within {self._timeout:g} s. "
            f"Received at {self._cluster.addresses[0]}: {self._leader.problem}. Look "
            "whether rank 0 is started and for an error in its log, and whether this "
            "address of it is right in every worker's TF_CONFIG and can be reached "
            "from here; a larger `start_timeout` allows more time."
        )

    def _lost(self, how: str) -> ClusterError:
        return ClusterError(
            "Rank 0 must stay until all workers are there. Received by rank "
            f"{self._cluster.rank} from {self._cluster.addresses[0]}: {how}. Look for "
            "an error in rank 0's log."
        )

    def _say_what_it_waits_for(self) -> None:
        rest = max(0.0, self._deadline - time.monotonic())
        where = f"rank 0 ({self._cluster.addresses[0]})"
        what = (
            f"has reached {where} and waits for the other workers"
            if self._leader.answered
            else f"waits for {where}: {self._leader.problem}"
        )
        self._notice.give(f"Rank {self._cluster.rank} {what}. {rest:.0f} s are left.")


class _Notice:
    """Tells a user who waits what is waited for."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _FIRST_NOTICE_SECONDS

    def give(self, text: str) -> None:
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _NOTICE_SECONDS
            _LOG.warning("%s", text)


class _Call:
    """Calls an address again and again until the right process answers.

    Attributes:
        token: What the callee must send back.
        started: When the first attempt began, by the monotonic clock.
        answered: Whether the right process answered; set by the caller.
        line: The connection, while there is one.
        problem: Why it was not answered so far.
    """

    def __init__(self, address: str):
        self.token = secrets.token_hex(8)
        self.started = time.monotonic()
        self.answered = False
        self.line: _Line | None = None
        self.problem = "no answer yet"
        self._address = address
        self._dialer = _Dialer(address)
        self._patience = 0.0

    def step(self, board: "_Switchboard", greeting: Any) -> None:
        """Goes on with it; `greeting` is said first on every connection."""
        if self.answered:
            return
        if self.line is None:
            self.line = self._dialer.take()
            if self.line is None:
                self.problem = self._dialer.problem or self.problem
                return
            self._patience = time.monotonic() + _ANSWER_SECONDS
            board.add(self.line)
            try:
                self.line.send(greeting)
            except OSError as error:
                self.again(board, str(error))
        elif self.line.closed:
            self.again(board, "what answers there is not that worker")
        elif time.monotonic() > self._patience:
            self.again(board, "it accepts connections, but does not answer")

    def again(self, board: "_Switchboard", problem: str) -> None:
        self.problem = problem
        self.close(board)
        self._dialer = _Dialer(self._address, pause=_RETRY_SECONDS)

    def close(self, board: "_Switchboard") -> None:
        self._dialer.close()
        if self.line is not None:
            board.drop(self.line)
            self.line = None


class _Dialer:
    """Tries to connect in a thread: nothing limits the time of a name's look-up."""

    def __init__(self, address: str, pause: float = 0.0):
        self.problem: str | None = None
        self._target = split_address(address)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._line: _Line | None = None
        threading.Thread(target=self._run, args=[pause], daemon=True).start()

    def take(self) -> "_Line | None":
        """Returns the connection, once."""
        with self._lock:
            line, self._line = self._line, None
            return line

    def close(self) -> None:
        """Stops trying."""
        self._over.set()
        line = self.take()
        if line is not None:
            line.close()

    def _run(self, pause: float) -> None:
        while not self._over.wait(pause):
            pause = _RETRY_SECONDS
            try:
                connection = socket.create_connection(
                    self._target, timeout=_ANSWER_SECONDS
                )
            # A name that IDNA cannot encode is a ValueError.
            except (OSError, ValueError) as error:
                self.problem = str(error)
                continue
            if _connected_to_itself(connection):
                connection.close()
                continue
            with self._lock:
                if self._over.is_set():
                    connection.close()
                else:
                    self._line = _Line(connection, self._target[0])
            return


class _Line:
    """A connection that carries one JSON value to a line.

    Attributes:
        peer: The other end's host.
        expires: When it is dropped, by the monotonic clock.
        closed: Whether this end closed it.
    """

    def __init__(self, connection: socket.socket, peer: str):
        connection.settimeout(_ANSWER_SECONDS)
        self.peer = peer
        self.expires = math.inf
        self.closed = False
        self._socket = connection
        self._unread = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def keep(self) -> None:
        """Says that a worker is at the other end."""
        self.expires = math.inf

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def finish(self) -> None:
        """Says that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, value: Any) -> None:
        self._socket.sendall(json.dumps(value).encode() + b"\n")

    def read(self) -> list[Any]:
        """Returns the values that have arrived whole, when some bytes have arrived.

        Raises:
            OSError: The connection has ended.
            ValueError: What arrived is no JSON or has no end.
        """
        chunk = self._socket.recv(65536)
        if not chunk:
            raise ConnectionError("the connection was closed")
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if len(self._unread) > _LONGEST_LINE:
            raise ValueError("too long a line")
        try:
            return [json.loads(line) for line in lines]
        except RecursionError as error:
            raise ValueError("too deep a value") from error

    def alive(self) -> bool:
        """Whether the other end has not closed it, as far as is known."""
        self._socket.setblocking(False)
        try:
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self._socket.settimeout(_ANSWER_SECONDS)


class _Switchboard:
    """Accepts connections and collects what arrives on all of them."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._lines: set[_Line] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> "_Switchboard":
        return self

    def __exit__(self, *_: object) -> None:
        for line in list(self._lines):
            self.drop(line)
        self._selector.close()

    def add(self, line: _Line) -> None:
        self._lines.add(line)
        self._selector.register(line, selectors.EVENT_READ)

    def drop(self, line: _Line) -> None:
        if line in self._lines:
            self._lines.remove(line)
            self._selector.unregister(line)
            line.close()

    def busy(self) -> bool:
        """Whether a worker is connected."""
        return any(line.expires == math.inf for line in self._lines)

    def finish(self) -> None:
        """Says to all that nothing more will be sent."""
        for line in self._lines:
            line.finish()

    def messages(self) -> list[tuple[_Line, Any]]:
        """Returns what has arrived, after waiting for a moment.

        `None` stands for the end of a connection, which is dropped.
        """
        arrived: list[tuple[_Line, Any]] = []
        for key, _ in self._selector.select(_TICK_SECONDS):
            if isinstance(key.fileobj, _Line):
                line = key.fileobj
                try:
                    arrived += [(line, message) for message in line.read()]
                except (OSError, ValueError):
                    self.drop(line)
                    arrived.append((line, None))
            else:
                self._accept()
        now = time.monotonic()
        for line in [line for line in self._lines if line.expires < now]:
            self.drop(line)
        return arrived

    def _accept(self) -> None:
        # It may have gone again already.
        with contextlib.suppress(OSError):
            connection, address = self._listener.accept()
            # An IPv4 address may be written as an IPv6 one.
            line = _Line(connection, address[0].removeprefix("::ffff:"))
            line.expires = time.monotonic() + _ANSWER_SECONDS
            self.add(line)


@contextlib.contextmanager
def _listen(cluster: Cluster) -> Iterator[socket.socket]:
    """Holds this worker's own port, as TensorFlow's server will."""
    _, port = split_address(cluster.address)
    end = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            listener = _bound(port)
            break
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() < end:
                time.sleep(_RETRY_SECONDS)
                continue
            raise ClusterError(
                f"Rank {cluster.rank} must be able to listen on its own port. "
                f"Received: {cluster.address}, {error.strerror}. Choose another "
                "port in TF_CONFIG on all workers, or end the process that has it "
                f"(`ss -ltnp 'sport = :{port}'` shows it)."
            ) from error
    with listener:
        yield listener


def _bound(port: int) -> socket.socket:
    """Listens where gRPC will: on all interfaces, IPv6 too where there is any."""
    if socket.has_dualstack_ipv6():
        try:
            return _bound_to(port, socket.AF_INET6)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return _bound_to(port, socket.AF_INET)


def _bound_to(port: int, family: socket.AddressFamily) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As gRPC does; it also lets a launcher keep the port reserved.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _contrast(ours: list[Any], theirs: list[Any]) -> tuple[Any, Any]:
    """Picks what differs between two lists, which may be long."""
    if len(ours) != len(theirs):
        return f"{len(ours)} workers", f"{len(theirs)} workers"
    return next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])


def _connected_to_itself(connection: socket.socket) -> bool:
    """Whether both ends are one, as TCP allows while nobody listens."""
    try:
        return connection.getsockname() == connection.getpeername()
    except OSError:
        return False


def _twins(rank: int, one: str, other: str) -> str:
    return (
        "Every worker needs an index of its own. Received: two processes with rank "
        f"{rank}, at {one} and {other}. Correct the task's index in TF_CONFIG, or end "
        "the process that is left over from an earlier start."
    )
