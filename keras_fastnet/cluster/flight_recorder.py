"""Notes of what each worker is doing, by which a late or lost worker is named.

All notes are texts in TensorFlow's coordination service, which runs on the chief
(rank 0), whatever carries the sums:

- `keras_fastnet/doing/RANK`: what a worker is doing, and whether it waits for others;
- `keras_fastnet/end`: the first worker that failed, left the program or has named a
  late one. The service takes a key once, so all workers read the same.
"""

import atexit
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.notes import Note, Notes, Waits
from keras_fastnet.cluster.watchdog import silent_ranks
from keras_fastnet.errors import ClusterError

_TICK_SECONDS = 1.0
# A wait of this length is looked into.
_LONG_SECONDS = 5.0
# When a waiting worker prints for which it waits.
_PATIENCE_SECONDS = 30.0
# A worker that has found which one is late ends after so long, so that the others can
# read its message first. An ending worker breaks their connections.
_LINGER_SECONDS = 3.0
_READ_SECONDS = 1.0
_DOING = "keras_fastnet/doing"
_END = "keras_fastnet/end"
# In the error of MPI ranks that are about to sum different tensors.
_OTHER_SUMS = "All ranks must sum the same tensors"
# Errors of TensorFlow that another worker may be the cause of.
_OF_PEERS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


class _End(NamedTuple):
    """Which worker ends, whether by an error, and the error of the others."""

    rank: int
    failed: bool
    message: str


class FlightRecorder:
    """Notes what this worker is doing, and ends waits for workers that do not come.

    A thread looks every second how long this worker has waited for the others, and
    leaves its note for them. It ends the wait if another worker has ended, does not
    answer, or waits in another call, and when the limit is reached.

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
        self._seen: Notes | None = None
        self._stop = threading.Event()
        self._waiting: Waits = ""
        self._posted: Note | None = None
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
        """A context in which this worker waits for all others, outside of steps.

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
        """Starts the thread; TensorFlow's servers must be connected."""
        thread = threading.Thread(target=self._look_often, daemon=True)
        thread.start()
        hook = sys.excepthook

        def report(
            kind: type[BaseException],
            error: BaseException,
            traceback: TracebackType | None,
        ) -> None:
            self._report(kind, error, traceback, hook)

        sys.excepthook = report

        @atexit.register
        def end() -> None:
            if self.failure is None:
                # With MPI the process then waits for the others, and still answers.
                self._post_end("has left the program", failed=False)
            self.note("the end of the program")
            # TensorFlow must not be called while the interpreter ends.
            self._stop.set()
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
        except ClusterError:
            raise
        except (tf.errors.OpError, RuntimeError) as error:
            named = self._explained(error)
            if named is None:
                raise
            raise named from error

    def _explained(self, error: Exception) -> ClusterError | None:
        """Returns an error that names the worker that is the cause of another error."""
        other_sums = _OTHER_SUMS in str(error)
        if self.failure is None and (other_sums or isinstance(error, _OF_PEERS)):
            silent = self._silent()
            if not silent and self._waits and other_sums:
                rank = self._cluster.rank
                self._fail(self._notes().unequal_steps([rank], self._own()))
                # Not read before: the others wait a second for it.
            elif 0 not in silent and (end := self._read_end()) is not None:
                self._fail(end.message)
            elif silent:
                self._fail(self._gone(silent))
        if self.failure is None:
            return None
        # Not the recorder's own object, which has no traceback.
        time.sleep(max(0.0, self._failed_at + _LINGER_SECONDS - time.monotonic()))
        return ClusterError(str(self.failure))

    def _report(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
        hook: Callable[..., object],
    ) -> None:
        """Reports the error that ends the program; in one line if it is not the first.

        The earlier `hook` is called in any case: with MPI it ends all ranks, which
        would wait for this one without end.
        """
        text, numbers, _ = self._doing
        named: BaseException = error
        if isinstance(error, tf.errors.OpError):
            # Of a program's own loop.
            named = self._explained(error) or error
        told = f"{type(named).__name__}: {named}".splitlines()[0]
        rank = self._cluster.rank
        self._post_end(f"failed in {text.format(*numbers)}: {told}", failed=True)
        first = self._read_end()
        if first is None or not first.failed or first.rank == rank:
            if named is not error:
                print(f"fastnet: {named}", file=sys.stderr, flush=True)
            # The chief keeps the first failure for the others.
            hook(kind, error, traceback)
            time.sleep(0.0 if rank else _READ_SECONDS)
            return
        hook(ClusterError, ClusterError(f"rank {rank} fails, too: {told}"), None)
        # The first to fail is the first to end.
        time.sleep(2 * _READ_SECONDS)

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
        """Looks how long this worker has waited, and tells the others what it does."""
        printed, look_after = False, _LONG_SECONDS
        while self.failure is None and not self._stop.wait(_TICK_SECONDS):
            waited = self._waited()
            self._waiting = ""
            if waited > _TICK_SECONDS:
                self._waiting = "outside" if self._waits else "step"
            self._post_note()
            if waited < min(_LONG_SECONDS, self._wait_timeout):
                printed, look_after = False, _LONG_SECONDS
                continue
            end = self._read_end()
            message = None if end is None else end.message
            if message is None and waited > min(look_after, self._wait_timeout):
                # Less and less often: in a large cluster all may wait for one.
                look_after = 2 * waited
                message = self._cause(at_limit=waited > self._wait_timeout)
            if message is not None:
                self._fail(message)
            elif waited > _PATIENCE_SECONDS and not printed:
                printed = True
                # The outermost says most to a reader.
                purpose = f" {self._waits[0][0]}" if self._waits else ""
                print(
                    f"fastnet: worker {self._cluster.rank} has waited {waited:.0f} "
                    f"seconds{purpose}. {self._notes().last_seen()}.",
                    file=sys.stderr,
                    flush=True,
                )
        self._post_note()

    def _cause(self, at_limit: bool) -> str | None:
        """Returns the message that ends a wait; `None` if it may go on."""
        silent = self._silent()
        if silent and not at_limit:
            # Twice: a busy machine may answer late.
            silent = sorted({*silent} & {*self._silent()})
        if silent:
            return self._gone(silent)
        if at_limit:
            return self._notes().late(self._wait_timeout)
        return self._deadlock()

    def _deadlock(self) -> str | None:
        """Returns the message if some workers wait in a step, the others elsewhere.

        The chief looks, for which no note is far away, and twice: notes are a second
        old.
        """
        if self._cluster.rank:
            return None
        before, self._seen = self._seen, self._notes()
        known = self._seen.known
        outside = [rank for rank, note in known.items() if note.waits == "outside"]
        inside = [rank for rank, note in known.items() if note.waits == "step"]
        all_wait = len(outside) + len(inside) == self._cluster.size
        if not (all_wait and outside and inside and self._seen == before):
            return None
        return self._seen.unequal_steps(outside, known[inside[0]])

    def _fail(self, message: str) -> None:
        """Ends this worker's waits, and passes the message to the other workers."""
        self._failed_at = time.monotonic()
        self.failure = ClusterError(message)
        _post_soon(_END, json.dumps(_End(self._cluster.rank, True, message)))
        upstream.abort_collectives(message)

    def _post_end(self, how: str, *, failed: bool) -> None:
        """Tells the other workers that this one ends, unless another one ends first."""
        rank = self._cluster.rank
        message = (
            f"All workers must run until the training has ended. Received: rank {rank} "
            f"{how}. Look at its output, and for code that depends on the rank."
        )
        _post_soon(_END, json.dumps(_End(rank, failed, message)))

    def _read_end(self) -> _End | None:
        """Returns which worker ended first; `None` if none has, or the chief has."""
        text = upstream.text_within(_END, _READ_SECONDS)
        return None if text is None else _End(*json.loads(text))

    def _gone(self, silent: list[int]) -> str:
        """Returns the message about workers that do not answer."""
        own = Notes(self._cluster.size, {self._cluster.rank: self._own()})
        return (own if 0 in silent else self._notes()).gone(silent)

    def _silent(self) -> list[int]:
        return silent_ranks(self._cluster.addresses, self._cluster.rank)

    def _notes(self) -> Notes:
        """Returns what is known of the workers."""
        known = {self._cluster.rank: self._own()}
        for rank in {*range(self._cluster.size)} - {*known}:
            text = upstream.text_within(f"{_DOING}/{rank}", _READ_SECONDS)
            if text is not None:
                known[rank] = Note(*json.loads(text))
        return Notes(self._cluster.size, known)

    def _own(self) -> Note:
        text, numbers, since = self._doing
        return Note(text, list(numbers), since, self._waiting)

    def _post_note(self) -> None:
        """Leaves the note of what this worker is doing in place of the last one."""
        own = self._own()
        if own == self._posted:
            return
        last, self._posted = self._posted, own
        _post_soon(f"{_DOING}/{self._cluster.rank}", json.dumps(own), last is not None)


def _post_soon(key: str, text: str, is_there: bool = False) -> None:
    """Leaves a text, or replaces it, if the chief takes it within a second.

    A chief that is suspended never takes it.
    """

    def post() -> None:
        # The chief has ended, or another worker has left a text with this key.
        with contextlib.suppress(tf.errors.OpError):
            if is_there:
                upstream.remove_text(key)
            upstream.post_text(key, text)

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    thread.join(_READ_SECONDS)
