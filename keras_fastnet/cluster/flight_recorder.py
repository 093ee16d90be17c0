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
from keras_fastnet.cluster import notes
from keras_fastnet.cluster.cluster_spec import Cluster
from keras_fastnet.cluster.notes import Note
from keras_fastnet.cluster.watchdog import silent_ranks
from keras_fastnet.errors import ClusterError

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
    """Why a worker ends.

    Attributes:
        rank: Its rank.
        failed: Whether by an error.
        message: The other workers' error.
    """

    rank: int
    failed: bool
    message: str


class FlightRecorder:
    """Notes what this worker is doing, and ends waits for workers that do not come.

    A thread leaves this worker's note for the others every two seconds. Another one
    looks every second how long this worker has waited for the others. It ends the wait
    if another worker has ended, does not answer, or waits in another call, and when the
    limit is reached.

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
        self._seen: dict[int, Note] = {}
        self._stop = threading.Event()
        self._waiting: notes.Waits = ""
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
        except ClusterError:
            raise
        except (tf.errors.OpError, RuntimeError) as error:
            named = self.explain(error)
            if named is None:
                raise
            raise named from error

    def explain(self, error: Exception) -> ClusterError | None:
        """Returns an error that names the worker that is the cause of another error.

        Args:
            error: The error, such as TensorFlow's or MPI's about a collective.

        Returns:
            The error, or `None` if all workers answer.
        """
        other_sums = _OTHER_SUMS in str(error)
        if self.failure is None and (other_sums or isinstance(error, _OF_PEERS)):
            silent = self._silent()
            if not silent and self._waits and other_sums:
                known = self._notes()
                ranks, own = [self._cluster.rank], known[self._cluster.rank]
                workers = self._cluster.size
                self._fail(notes.unequal_steps(ranks, own, known, workers))
                # Not read before: the others wait a second for it.
            elif 0 not in silent and (end := self._read_end()) is not None:
                self._fail(end.message)
            elif silent:
                self._fail(self._gone(silent))
        if self.failure is not None:
            # Not the recorder's own object, which has no traceback.
            time.sleep(max(0.0, self._failed_at + _LINGER_SECONDS - time.monotonic()))
            return ClusterError(str(self.failure))
        return None

    def _report(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
        hook: Callable[..., object],
    ) -> None:
        """Reports the error that ends the program; in one line if it is not the first.

        Args:
            kind: The error's class.
            error: The error.
            traceback: Its traceback.
            hook: The earlier `sys.excepthook`. With MPI it ends all ranks, so that it
                is called in any case: a rank that waits for the others in MPI's own
                end would wait without end.
        """
        doing = self._own().doing
        named: BaseException = error
        if isinstance(error, tf.errors.OpError):
            # Of a program's own loop.
            named = self.explain(error) or error
        told = f"{type(named).__name__}: {named}".splitlines()[0]
        rank = self._cluster.rank
        self._post_end(f"failed in {doing}: {told}", failed=True)
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
        printed, look_after = False, _LONG_SECONDS
        while self.failure is None and not self._stop.wait(_TICK_SECONDS):
            waited = self._waited()
            self._waiting = ""
            if waited > _TICK_SECONDS:
                self._waiting = "outside" if self._waits else "step"
            if waited < min(_LONG_SECONDS, _PATIENCE_SECONDS, self._wait_timeout):
                printed, look_after = False, _LONG_SECONDS
                continue
            end = self._read_end()
            if end is not None:
                self._fail(end.message)
            elif waited > self._wait_timeout:
                self._fail(self._late())
            elif waited > look_after:
                # Less and less often: in a large cluster all may wait for one.
                look_after = 2 * waited
                # Twice: a busy machine may answer late.
                silent = set(self._silent()) & set(self._silent())
                found = self._gone(sorted(silent)) if silent else self._deadlock()
                if found is not None:
                    self._fail(found)
            elif waited > _PATIENCE_SECONDS and not printed:
                printed = True
                # The outermost says most to a reader.
                purpose = f" {self._waits[0][0]}" if self._waits else ""
                seen = notes.last_seen(self._notes(), self._cluster.size)
                print(
                    f"fastnet: worker {self._cluster.rank} has waited {waited:.0f} "
                    f"seconds{purpose}. {seen}.",
                    file=sys.stderr,
                    flush=True,
                )

    def _fail(self, message: str) -> None:
        """Ends this worker's waits, and passes the message to the other workers."""
        self._failed_at = time.monotonic()
        self.failure = ClusterError(message)
        _post_soon(_END, json.dumps(_End(self._cluster.rank, True, message)))
        upstream.abort_collectives(message)

    def _post_end(self, how: str, *, failed: bool) -> None:
        """Tells the other workers that this one ends, unless another one ends first."""
        rank = self._cluster.rank
        end = _End(rank, failed, notes.ended(rank, how))
        _post_soon(_END, json.dumps(end))

    def _read_end(self) -> _End | None:
        """Returns which worker ended first; `None` if none has, or the chief has."""
        text = self._read(_END)
        return None if text is None else _End(*json.loads(text))

    def _late(self) -> str:
        """Returns the message about a wait that took too long."""
        silent = self._silent()
        if silent:
            return self._gone(silent)
        return notes.late(self._notes(), self._cluster.size, self._wait_timeout)

    def _gone(self, silent: list[int]) -> str:
        """Returns the message about workers that do not answer."""
        known = {self._cluster.rank: self._own()} if 0 in silent else self._notes()
        return notes.gone(silent, known, self._cluster.size)

    def _deadlock(self) -> str | None:
        """Returns the message if some workers wait in a step, the others elsewhere.

        The chief looks, for which no note is far away, and twice: notes are up to two
        seconds old.
        """
        if self._cluster.rank:
            return None
        before, self._seen = self._seen, self._notes()
        outside = [r for r, note in self._seen.items() if note.waits == "outside"]
        inside = [r for r, note in self._seen.items() if note.waits == "step"]
        all_wait = len(outside) + len(inside) == self._cluster.size
        if not (all_wait and outside and inside and self._seen == before):
            return None
        step = self._seen[inside[0]]
        return notes.unequal_steps(outside, step, self._seen, self._cluster.size)

    def _silent(self) -> list[int]:
        return silent_ranks(self._cluster.addresses, self._cluster.rank)

    def _notes(self) -> dict[int, Note]:
        """Returns what is known of the workers, by rank."""
        found = {}
        for rank in range(self._cluster.size):
            if rank == self._cluster.rank:
                found[rank] = self._own()
            elif (text := self._read(f"{_DOING}/{rank}")) is not None:
                found[rank] = Note(*json.loads(text))
        return found

    def _own(self) -> Note:
        text, numbers, since = self._doing
        return Note(text, list(numbers), since, self._waiting)

    def _read(self, key: str) -> str | None:
        return upstream.text_within(key, _READ_SECONDS)

    def _post_often(self) -> None:
        key = f"{_DOING}/{self._cluster.rank}"
        last: Note | None = None
        while True:
            stopped = self._stop.is_set()
            own = self._own()
            if own != last:
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
