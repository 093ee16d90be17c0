"""Texts that the workers of a cluster leave for one another, outside of steps."""

import itertools
import json
import threading
import time

import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.cluster.flight_recorder import FlightRecorder
from keras_fastnet.errors import MismatchError

_TICK_SECONDS = 0.5
# Ends the key of a worker that has read all texts.
_READ = "/read"


class Board:
    """Texts on the coordination service that TensorFlow runs on the chief.

    It works with all transports, and takes a third of the time of an eager collective.

    Args:
        rank: This worker's rank.
        workers: Number of workers.
        recorder: Ends waits for workers that do not come.
    """

    def __init__(self, rank: int, workers: int, recorder: FlightRecorder):
        self._rank = rank
        self._workers = workers
        self._recorder = recorder
        self._meetings = itertools.count()
        self._topic: str | None = None

    def gather(
        self, own: str, purpose: str, *, detail: str = "", last: bool = False
    ) -> list[str]:
        """Returns a text of each worker, by rank. All workers must call it.

        Args:
            own: This worker's.
            purpose: What it is for, such as "the beginning of `fit`".
            detail: What is added to `purpose` in messages, and may differ. Defaults to
                `""`.
            last: Whether the program may end now: the chief, without which no text can
                be read, waits until all have read theirs. Defaults to `False`.

        Raises:
            ClusterError: If another worker does not call it in time.
            MismatchError: If another worker calls it for another purpose.
        """
        texts = self._meet(json.dumps([purpose, detail, own]), purpose, last)
        seen = [json.loads(text) for text in texts]
        if len({purpose for purpose, *_ in seen}) > 1:
            if not last:
                self._meet("", "the end of the program", last=True)
            told = "; ".join(
                f"rank {rank}: {purpose}{detail}"
                for rank, (purpose, detail, _) in enumerate(seen)
            )
            raise MismatchError(
                "All workers must make the same models and calls in the same order. "
                f"Received: {told}. Look for code that depends on the rank, such as an "
                "`evaluate` on one worker only."
            )
        return [text for *_, text in seen]

    def _meet(self, own: str, purpose: str, last: bool) -> list[str]:
        topic = f"keras_fastnet/meetings/{next(self._meetings)}"
        meeting = _Meeting(self, topic, own, last)
        begun = time.monotonic()
        recorder = self._recorder
        with recorder.named_errors(), recorder.waiting(f"for the others at {purpose}"):
            while not meeting.ended(_TICK_SECONDS):
                recorder.poll(time.monotonic() - begun)
            return meeting.result()

    def exchange(self, topic: str, own: str, last: bool) -> list[str]:
        """Returns the texts of a meeting; waits without a limit.

        Args:
            topic: The meeting's name.
            own: This worker's text.
            last: Whether the chief waits until all have read the texts.
        """
        others = range(1, self._workers)
        if self._rank:
            key = f"{topic}/{self._rank}"
            upstream.post_text(key, own)
            texts = json.loads(upstream.awaited_text(topic))
            if last:
                upstream.post_text(key + _READ, "")
            return texts
        texts = [own, *(upstream.awaited_text(f"{topic}/{r}") for r in others)]
        upstream.post_text(topic, json.dumps(texts))
        if last:
            for rank in others:
                upstream.awaited_text(f"{topic}/{rank}{_READ}")
        if self._topic is not None:
            # All have come here, and so have read the texts of the last meeting.
            upstream.remove_text(self._topic)
        self._topic = topic
        return texts


class _Meeting(threading.Thread):
    """An exchange in a thread of its own: a suspended chief never answers.

    Args:
        board: The board.
        topic: The meeting's name.
        own: This worker's text.
        last: Whether the chief waits until all have read the texts.
    """

    def __init__(self, board: Board, topic: str, own: str, last: bool):
        super().__init__(daemon=True, name="fastnet-meeting")
        self._arguments = topic, own, last
        self._board = board
        self._texts: list[str] = []
        self._error: tf.errors.OpError | None = None
        self.start()

    def run(self) -> None:
        """Exchanges the texts."""
        try:
            self._texts = self._board.exchange(*self._arguments)
        except tf.errors.OpError as error:
            self._error = error

    def ended(self, seconds: float) -> bool:
        """Returns whether the exchange ends.

        Args:
            seconds: How long to wait for that.
        """
        self.join(seconds)
        return not self.is_alive()

    def result(self) -> list[str]:
        """Returns the texts.

        Raises:
            tf.errors.OpError: If the chief has ended.
        """
        if self._error is not None:
            raise self._error
        return self._texts
