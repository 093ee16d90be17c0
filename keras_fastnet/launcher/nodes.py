"""The launchers of several machines, which start and end their workers together."""

import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from keras_fastnet.cluster.cluster_spec import split_address
from keras_fastnet.cluster.ports import listening_socket
from keras_fastnet.cluster.rendezvous.connections import Connection, Connections
from keras_fastnet.cluster.rendezvous.dialer import Dialer
from keras_fastnet.cluster.rendezvous.token_proof import NO_TOKEN_AT_RANK_0
from keras_fastnet.errors import UsageError
from keras_fastnet.text import listed

Info = dict[str, Any]

_BEAT_SECONDS = 2.0
# A launcher sends a beat also while its workers compute.
_SILENT_SECONDS = 20.0
# As `TorusStrategy(start_timeout)`: machines are started by hand, or by a scheduler.
JOIN_SECONDS = 300.0


class Nodes:
    """This machine's connections to the launchers of the other machines.

    A thread keeps them. The machine with rank 0 listens, the others connect to it. It
    collects what all machines say on a topic, and passes it to all.

    Args:
        rank: This machine's rank.
        size: The number of machines.
        rendezvous: `host:port` of machine 0.
        token: What all machines must prove to have; `None` for nothing.
        settings: What must be equal on all machines, by the option's name.
        wake: Called in the thread whenever there is something new.

    Attributes:
        problem: Why the machines cannot go on together; `None` while they can.
        alarms: What ended each start first, by the start's number.
        wishes: The number of workers of each machine that `fastnet scale` asked for
            during a start, by the start's number.
        hosts: The address of each machine, by rank, once all have joined.
        rendezvous: As passed.

    Raises:
        UsageError: If the port of machine 0 is not free.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        rendezvous: str,
        token: str | None,
        settings: Mapping[str, Any],
        wake: Callable[[], None],
    ) -> None:
        self.rank, self.size = rank, size
        self.rendezvous = rendezvous
        self._host, port = split_address(rendezvous)
        self._token = token
        self._settings = dict(settings)
        self._wake = wake
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._forget()
        try:
            # The other machines accept no connections.
            self._listener = (
                listening_socket(port)
                if rank == 0
                else socket.create_server(("127.0.0.1", 0))
            )
        except OSError as error:
            raise UsageError(
                "--rendezvous HOST:PORT must name a free port of machine 0. Received: "
                f"{rendezvous} ({error.strerror}). Choose another port on all machines."
            ) from error

    def _forget(self) -> None:
        self.problem: str | None = None
        self.alarms: dict[int, Info] = {}
        self.wishes: dict[int, list[int]] = {}
        self.hosts: list[str] = []
        self._outgoing: list[Info] = []
        self._said: dict[str, dict[int, Info]] = {}
        self._all: dict[str, list[Info]] = {}
        self._members: dict[int, Connection] = {}
        self._seen: dict[int, float] = {}
        self._closing.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Nodes":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._listener.close()

    def join_again(self) -> None:
        """Connects to all machines again, as if nothing had been said before.

        For all machines that remain when `problem` is that one is lost. Its launcher
        must be started again.
        """
        self._closing.set()
        self._thread.join()
        self._forget()
        self._thread.start()

    def say(self, topic: str, own: Info) -> None:
        """Tells all machines something; `heard` returns what all have said.

        Args:
            topic: What it is about; all machines use the same topics in one order.
            own: What this machine says; JSON can hold it.
        """
        self._send({"say": topic, "node": self.rank, "info": own})

    def heard(self, topic: str) -> list[Info] | None:
        """Returns what all machines have said, by rank; `None` if one has not.

        Args:
            topic: The topic.
        """
        return self._all.get(topic)

    def alarm(self, start: int, info: Info) -> None:
        """Has all machines end their workers.

        Args:
            start: The number of the start. Only its first alarm counts.
            info: Why; JSON can hold it.
        """
        self._send({"alarm": start, "node": self.rank, "info": info})

    def wish(self, start: int, workers: Sequence[int]) -> None:
        """Has all machines end a start at the next update. For machine 0.

        Args:
            start: The number of the start.
            workers: The number of workers of each machine in the next start.
        """
        self._send({"wish": start, "workers": list(workers)})

    def _send(self, message: Info) -> None:
        with self._lock:
            self._outgoing.append(message)

    def _run(self) -> None:
        with Connections(self._listener, self.rank, self._token) as connections:
            work = self._lead if self.rank == 0 else self._follow
            try:
                work(connections)
            except Exception as error:
                self._fail(f"the connection of the machines failed: {error!r}")

    def _taken(self) -> list[Info]:
        with self._lock:
            taken, self._outgoing = self._outgoing, []
        return taken

    def _lead(self, connections: Connections) -> None:
        self._seen[0] = math.inf
        end = time.monotonic() + JOIN_SECONDS
        beat = 0.0
        while not self._closing.is_set():
            for said in self._taken():
                self._pass_on(said)
            for connection, message in connections.messages():
                self._lead_one(connection, message)
            now = time.monotonic()
            if len(self._members) < self.size - 1 and now > end:
                missing = sorted(set(range(1, self.size)) - set(self._members))
                self._fail(
                    f"all machines must join within {JOIN_SECONDS:.0f} s. Received: "
                    f"none for {listed('--node-rank', missing)}. Start `fastnet run` "
                    "there, and check that it reaches machine 0"
                )
            if now > beat:
                beat = now + _BEAT_SECONDS
                self._broadcast({"beat": True})
                self._look_for_silent(now)
        for said in self._taken():
            self._pass_on(said)

    def _lead_one(self, connection: Connection, message: Info | None) -> None:
        known = {c: rank for rank, c in self._members.items()}
        if connection in known:
            rank = known[connection]
            self._seen[rank] = time.monotonic()
            if message is None:
                self._lose(rank, "has ended or cannot be reached")
            elif "beat" not in message:
                self._pass_on({**message, "node": rank})
            return
        if self.problem is not None and self.hosts:
            # It was started again, and tries again until this machine has noticed.
            connection.finish()
            return
        # A launcher that is refused for its token reports it itself.
        match message:
            case {"nonce": _} if self._token is None:
                connection.send({"refused": NO_TOKEN_AT_RANK_0})
                connection.finish()
            case {"hello": int(rank), "settings": dict(settings)}:
                self._welcome(connection, rank, settings)

    def _welcome(self, connection: Connection, rank: int, settings: Info) -> None:
        wrong = None
        if settings != self._settings:
            wrong = (
                "all machines must be given the same options and have the same version "
                f"of keras_fastnet. Received: {_shown(self._settings)} on machine 0, "
                f"{_shown(settings)} on machine {rank}"
            )
        elif not 0 < rank < self.size or rank in self._members:
            wrong = (
                f"every machine must have its own --node-rank below {self.size}. "
                f"Received: {rank} twice, the second time from {connection.peer}"
            )
        if wrong is not None:
            connection.send({"wrong": wrong})
            connection.finish()
            return
        connection.keep()
        self._members[rank] = connection
        self._seen[rank] = time.monotonic()
        connection.send({"welcome": rank})
        if len(self._members) == self.size - 1:
            peers = [self._members[r].peer for r in range(1, self.size)]
            self._broadcast({"hosts": [self._host, *peers]})
            self._take({"hosts": [self._host, *peers]})

    def _pass_on(self, message: Info) -> None:
        """Handles, on machine 0, what a machine says to all."""
        match message:
            case {"say": str(topic), "node": int(node), "info": info}:
                said = self._said.setdefault(topic, {})
                said[node] = info
                if len(said) == self.size:
                    told: Info = {
                        "topic": topic,
                        "infos": [said[r] for r in sorted(said)],
                    }
                    self._broadcast(told)
                    self._take(told)
            case {"alarm": int(start), "node": int(node), "info": info}:
                if start not in self.alarms:
                    told = {"start": start, "first": {"node": node, **info}}
                    self._broadcast(told)
                    self._take(told)
            case {"wish": int()}:
                self._broadcast(message)
                self._take(message)

    def _take(self, message: Info) -> None:
        """Handles, on every machine, what machine 0 tells all."""
        match message:
            case {"topic": str(topic), "infos": list(infos)}:
                self._all[topic] = infos
            case {"start": int(start), "first": dict(first)}:
                self.alarms.setdefault(start, first)
            case {"wish": int(start), "workers": list(workers)}:
                self.wishes[start] = workers
            case {"hosts": list(hosts)}:
                self.hosts = hosts
            case {"lost": str(text)} | {"wrong": str(text)}:
                self.problem = self.problem or text
            case _:
                return
        self._wake()

    def _follow(self, connections: Connections) -> None:
        dialer = Dialer(connections, self.rendezvous)
        greeting: Info = {"hello": self.rank, "settings": self._settings}
        end = time.monotonic() + JOIN_SECONDS
        welcome, beat, seen = False, 0.0, 0.0
        while not self._closing.is_set():
            if not welcome:
                dialer.step(greeting)
            for connection, message in connections.messages():
                if connection is not dialer.connection:
                    continue
                seen = time.monotonic()
                if message is None and welcome:
                    self._fail("machine 0 has ended or cannot be reached")
                elif message is not None and "welcome" in message:
                    welcome = True
                    connection.keep()
                elif message is not None:
                    self._take(message)
            now = time.monotonic()
            if not welcome:
                if dialer.refused_seconds > 3.0:
                    self._fail("all machines must have the same FASTNET_TOKEN, or none")
                elif now > end:
                    self._fail(
                        f"machine 0 must answer at {self.rendezvous} within "
                        f"{JOIN_SECONDS:.0f} s. Received: {dialer.problem}"
                    )
                continue
            if now - seen > _SILENT_SECONDS:
                self._fail("machine 0 does not answer")
            for said in self._taken():
                self._to_leader(dialer, said)
            if now > beat:
                beat = now + _BEAT_SECONDS
                self._to_leader(dialer, {"beat": True})
        for said in self._taken():
            self._to_leader(dialer, said)

    def _to_leader(self, dialer: Dialer, message: Info) -> None:
        if dialer.connection is not None and not dialer.connection.problem:
            dialer.connection.send(message)

    def _broadcast(self, message: Info) -> None:
        for connection in self._members.values():
            if not connection.problem:
                connection.send(message)

    def _look_for_silent(self, now: float) -> None:
        for rank, seen in self._seen.items():
            if now - seen > _SILENT_SECONDS:
                self._lose(rank, "does not answer")

    def _lose(self, rank: int, how: str) -> None:
        text = f"machine {rank} ({self._members[rank].peer}) {how}"
        self._broadcast({"lost": text})
        self._fail(text)

    def _fail(self, text: str) -> None:
        if self.problem is None:
            self.problem = text
            self._wake()


def _shown(settings: Info) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
