"""Records what each worker is doing; names workers for which the others wait."""

import atexit
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.cluster import events
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.watchdog import silent_ranks
from keras_fastnet.errors import ClusterError
from keras_fastnet.text import listed

_TICK_SECONDS = 1.0
# How often a worker leaves what it is doing for the others.
_POST_SECONDS = 2.0
# A wait of this length is looked into.
_LONG_SECONDS = 5.0
# When a waiting worker prints for which it waits.
_PATIENCE_SECONDS = 30.0
# A worker that has found which one is late ends after so long, so that the others can
# read its message first. An ending worker breaks their connections.
_LINGER_SECONDS = 3.0
_READ_SECONDS = 1.0
_FOLDER = "keras_fastnet/doing"
_VERDICT = "keras_fastnet/late"
_LEFT = "keras_fastnet/left"
_FAILED = "keras_fastnet/failed"
# Errors of TensorFlow that another worker may be the cause of.
_OF_PEERS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


class _Entry(NamedTuple):
    """What a worker is doing.

    Attributes:
        doing: A text.
        since: When it began, in seconds since 1970.
        waits: Whether it has waited in a collective for some seconds.
    """

    doing: str
    since: float
    waits: bool


class FlightRecorder:
    """Records what this worker is doing, and ends waits for workers that do not come.

    A thread leaves what this worker is doing in TensorFlow's coordination service every
    two seconds. Another one looks every second how long this worker has waited for the
    others. If that exceeds the limit, or a worker does not answer, it names that worker
    and what each was doing last, and aborts the collective.

    Args:
        cluster: The workers' addresses and this worker's rank.
        wait_timeout: Seconds to wait for another worker.
    """

    def __init__(self, cluster: Cluster, wait_timeout: float):
        self.failure: ClusterError | None = None
        self._cluster = cluster
        self._wait_timeout = wait_timeout
        self._failed_at = 0.0
        self._clocks: list[Callable[[], float]] = []
        self._waits: list[tuple[str, float]] = []
        self._polled: tuple[float, float] = (0.0, 0.0)
        self._stop = threading.Event()
        self._waiting = False
        self.note("the start of the strategy")

    def note(self, text: str, *numbers: int) -> None:
        """Records what this worker is doing.

        It is called several times in each step, so the text is put together only when
        it is needed.

        Args:
            text: A text, with `{}` for each number.
            *numbers: The numbers.
        """
        self._doing = text, numbers, time.time()

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A context in which this worker waits for all others.

        Args:
            text: What for: completes "worker 0 has waited 30 seconds".
        """
        self._waits.append((text, time.monotonic()))
        try:
            yield
        finally:
            self._waits.pop()

    def poll(self, seconds: float) -> None:
        """Called at least once a second by a wait that Python controls.

        Args:
            seconds: How long it has waited.

        Raises:
            ClusterError: If another worker is late, or does not answer.
        """
        now = time.monotonic()
        self._polled = now - seconds, now
        if self.failure is not None:
            raise self.failure

    def watch(self, clock: Callable[[], float]) -> None:
        """Watches one more kind of wait.

        Args:
            clock: Called every second; returns for how many seconds this worker has
                waited.
        """
        self._clocks.append(clock)

    def start(self) -> None:
        """Starts the threads; TensorFlow's servers must be connected."""
        threads = [
            threading.Thread(target=target, daemon=True, name="fastnet-recorder")
            for target in (self._post_often, self._look_often)
        ]
        for thread in threads:
            thread.start()
        hook = sys.excepthook

        def report(
            kind: type[BaseException],
            error: BaseException,
            traceback: TracebackType | None,
        ) -> None:
            events.tell("position", text=self._own().doing)
            # Errors of a program's own loop.
            named = (
                self.explain(error) if isinstance(error, tf.errors.OpError) else None
            )
            rank = self._cluster.rank
            if self._fails_first(named or error):
                if named is not None:
                    print(f"fastnet: {named}", file=sys.stderr, flush=True)
                hook(kind, error, traceback)
                # The chief keeps the rank of the first failure for the others.
                seconds = 0.0 if rank else _READ_SECONDS
            else:
                told = f"{kind.__name__}: {named or error}".splitlines()[0]
                print(f"fastnet: worker {rank} failed too: {told}", file=sys.stderr)
                events.tell("error", type=kind.__name__, message=str(named or error))
                # The first to fail is the first to end.
                seconds = 2 * _READ_SECONDS
            time.sleep(seconds)

        sys.excepthook = report

        @atexit.register
        def end() -> None:
            if self.failure is None:
                # With MPI the process then waits for the others, and still answers.
                _post_soon(_LEFT, str(self._cluster.rank))
            self.note("the end of the program")
            # TensorFlow must not be called while the interpreter ends.
            self._stop.set()
            for thread in threads:
                thread.join(2 * _TICK_SECONDS)

    @contextlib.contextmanager
    def named_errors(self) -> Iterator[None]:
        """A context that names the worker that an error of TensorFlow comes from.

        Raises:
            ClusterError: In place of an error of a collective, if another worker is
                late, has ended or does not answer.
        """
        try:
            yield
        except tf.errors.OpError as error:
            named = self.explain(error)
            if named is None:
                raise
            raise named from error

    def explain(self, error: tf.errors.OpError) -> ClusterError | None:
        """Returns an error that names the worker that is the cause of another error.

        Args:
            error: The error, such as TensorFlow's about a collective.

        Returns:
            The error, or `None` if all workers answer.
        """
        if self.failure is None and isinstance(error, _OF_PEERS):
            silent = self._silent()
            verdict = None if 0 in silent else self._read(_VERDICT)
            if verdict is not None:
                self._fail(verdict)
            elif silent:
                self._fail(self._gone(silent))
        if self.failure is not None:
            # Not the recorder's own object, which has no traceback.
            time.sleep(max(0.0, self._failed_at + _LINGER_SECONDS - time.monotonic()))
            return ClusterError(str(self.failure))
        return None

    def _waited(self) -> float:
        """Returns for how many seconds this worker has waited for others."""
        now = time.monotonic()
        waits = [clock() for clock in self._clocks]
        waits += [now - since for _, since in self._waits]
        since, polled = self._polled
        if now - polled < 2 * _TICK_SECONDS:
            waits.append(now - since)
        return max(waits, default=0.0)

    def _look_often(self) -> None:
        told, ask_after = False, _LONG_SECONDS
        while self.failure is None and not self._stop.wait(_TICK_SECONDS):
            waited = self._waited()
            self._waiting = waited > _TICK_SECONDS
            if waited < min(_LONG_SECONDS, _PATIENCE_SECONDS, self._wait_timeout):
                told, ask_after = False, _LONG_SECONDS
                continue
            verdict = self._read(_VERDICT)
            if verdict is not None:
                self._fail(verdict)
            elif waited > self._wait_timeout:
                self._fail(self._late())
            elif waited > ask_after:
                # Less and less often: in a large cluster all may wait for one.
                ask_after = 2 * waited
                left = self._read(_LEFT)
                if left is not None:
                    self._fail(self._ended(int(left)))
                    return
                # Twice: a busy machine may answer late.
                silent = set(self._silent()) & set(self._silent())
                if silent:
                    self._fail(self._gone(sorted(silent)))
            elif waited > _PATIENCE_SECONDS and not told:
                told = True
                self._tell(waited)

    def _tell(self, waited: float) -> None:
        # The outermost says most to a reader.
        purpose = f" {self._waits[0][0]}" if self._waits else ""
        print(
            f"fastnet: worker {self._cluster.rank} has waited {waited:.0f} seconds"
            f"{purpose}. {self._all_doing(self._entries())}.",
            file=sys.stderr,
            flush=True,
        )

    def _fail(self, message: str) -> None:
        """Ends this worker's waits, and passes the message to the other workers."""
        self._failed_at = time.monotonic()
        self.failure = ClusterError(message)
        events.tell("verdict", text=message)
        _post_soon(_VERDICT, message)
        upstream.abort_collectives(message)

    def _late(self) -> str:
        """Returns the message about a wait that took too long."""
        silent = self._silent()
        if silent:
            return self._gone(silent)
        entries = self._entries()
        waiting = {self._cluster.rank, *(r for r, e in entries.items() if e.waits)}
        late = [r for r in range(self._cluster.size) if r not in waiting]
        if late:
            found = f"{listed('rank', late)} {'is' if len(late) == 1 else 'are'} late"
            look = f"Look at the output of {listed('rank', late)}"
        else:
            found = "the workers wait for one another in different calls"
            look = "Look at what each was doing"
        return (
            f"No worker may let others wait for longer than `wait_timeout` = "
            f"{self._wait_timeout:g} s. Received: {found}. {self._all_doing(entries)}. "
            f"{look}, and for code that depends on the rank: all workers must make the "
            "same calls. If one of them needs more time, as for saving or reading "
            "data, pass a larger `wait_timeout` to the strategy."
        )

    def _gone(self, silent: list[int]) -> str:
        """Returns the message about workers that do not answer."""
        verb = "does" if len(silent) == 1 else "do"
        entries = {} if 0 in silent else self._entries()
        return (
            "All workers must run until the training has ended. Received: "
            f"{listed('rank', silent)} {verb} not answer: ended, suspended, or cut off "
            f"from the network. {self._all_doing(entries)}. Look at the output of "
            f"{listed('rank', silent)}, and start all workers again."
        )

    def _ended(self, rank: int) -> str:
        """Returns the message about a worker whose program has come to its end."""
        return (
            f"All workers must run until the training has ended. Received: rank {rank} "
            f"has left the program. {self._all_doing(self._entries())}. Look at its "
            "output, and for what depends on the rank in the script."
        )

    def _fails_first(self, error: BaseException) -> bool:
        """Returns whether no other worker's program has ended with an error before.

        Args:
            error: The error of this worker's program.
        """
        _post_soon(_FAILED, str(self._cluster.rank))
        first = self._read(_FAILED)
        if first is None:
            # The chief has ended.
            return self._cluster.rank == 0 or not isinstance(error, ClusterError)
        return int(first) == self._cluster.rank

    def _silent(self) -> list[int]:
        return silent_ranks(self._cluster.addresses, self._cluster.rank)

    def _all_doing(self, entries: dict[int, _Entry]) -> str:
        """Returns what each worker was doing last, as a text."""
        groups: dict[tuple[str, bool], list[int]] = {}
        known = {self._cluster.rank: self._own()} | entries
        for rank, entry in sorted(known.items()):
            groups.setdefault((entry.doing, entry.waits), []).append(rank)
        told = []
        for (doing, waits), ranks in groups.items():
            seconds = max(time.time() - known[rank].since for rank in ranks)
            text = f"{doing}, waiting for others" if waits else doing
            told.append(f"{listed('rank', ranks)}: {text}, for {seconds:.0f} s")
        if len(known) < self._cluster.size:
            told.append("not known of the others")
        return f"Last seen: {'; '.join(told)}"

    def _entries(self) -> dict[int, _Entry]:
        """Returns what the other workers have left, by rank."""
        found = {}
        for rank in range(self._cluster.size):
            if rank != self._cluster.rank:
                text = self._read(f"{_FOLDER}/{rank}")
                if text is not None:
                    found[rank] = _Entry(*json.loads(text))
        return found

    def _own(self) -> _Entry:
        text, numbers, since = self._doing
        return _Entry(text.format(*numbers), since, self._waiting)

    def _read(self, key: str) -> str | None:
        return upstream.text_within(key, _READ_SECONDS)

    def _post_often(self) -> None:
        key = f"{_FOLDER}/{self._cluster.rank}"
        last: Any = None
        while True:
            stopped = self._stop.is_set()
            own = self._own()
            if own != last:
                events.tell_position(own.doing)
                # Blocks while the chief is suspended, so it has a thread of its own.
                if last is not None:
                    upstream.remove_text(key)
                if not _post(key, json.dumps(own)):
                    return
                last = own
            if stopped:
                return
            self._stop.wait(_POST_SECONDS)


def _post(key: str, text: str) -> bool:
    """Leaves a text; returns whether TensorFlow's coordination service took it."""
    try:
        upstream.post_text(key, text)
    except tf.errors.OpError:
        # The chief has ended, or another worker has left a text with this key.
        return False
    return True


def _post_soon(key: str, text: str) -> None:
    """Leaves a text if the chief, which may be suspended, takes it within a second."""
    post = threading.Thread(target=_post, args=(key, text), daemon=True)
    post.start()
    post.join(_READ_SECONDS)
