"""Texts that the workers of a cluster exchange, outside of steps."""

import concurrent.futures
import itertools
import json
import threading
import time
from typing import Any

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet.cluster.flight_recorder import FlightRecorder
from keras_fastnet.errors import MismatchError

_TICK_SECONDS = 0.5
# Ends the key of a worker that has read all texts.
_READ = "/read"
# Texts are removed together: each removal takes as long as a message.
_MEETINGS_REMOVED_AT_ONCE = 64


class Board:
    """Texts on the coordination service that TensorFlow runs on the chief.

    It works with all transports, and takes a third of the time of an eager collective.

    Args:
        rank: This worker's rank.
        workers: Number of workers.
        recorder: Ends waits for workers that do not come.
    """

    # Of all boards of a program, which have one coordination service.
    _meetings = itertools.count()

    def __init__(self, rank: int, workers: int, recorder: FlightRecorder):
        self._rank = rank
        self._workers = workers
        self._recorder = recorder

    def gather(self, own: Any, purpose: str, *, last: bool = False) -> list[Any]:
        """Returns a value of each worker, by rank. All workers must call it.

        Args:
            own: This worker's, for JSON.
            purpose: What it is for, such as "the beginning of `fit`".
            last: Whether the program may end now: the chief, without which no text can
                be read, waits until all have read theirs. Defaults to `False`.

        Raises:
            ClusterError: If another worker does not call it in time.
            MismatchError: If another worker calls it for another purpose.
        """
        texts = self._meet(json.dumps([purpose, own]), purpose, last)
        purposes, told = zip(*map(json.loads, texts), strict=True)
        if len({*purposes}) == 1:
            return list(told)
        if not last:
            self._meet("", "the end of the program", last=True)
        found = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(purposes))
        raise MismatchError(
            "All workers must make the same models and calls in the same order. "
            f"Received: {found}. Look for code that depends on the rank, such as an "
            "`evaluate` on one worker only."
        )

    def _meet(self, own: str, purpose: str, last: bool) -> list[str]:
        texts: concurrent.futures.Future[list[str]] = concurrent.futures.Future()
        number = next(self._meetings)

        def exchange() -> None:
            try:
                texts.set_result(self._exchange(number, own, last))
            except Exception as error:  # Raised where the texts are awaited.
                texts.set_exception(error)

        # A thread, as a suspended chief never answers.
        threading.Thread(target=exchange, daemon=True).start()
        begun = time.monotonic()
        waiting = self._recorder.waiting(f"for the others at {purpose}")
        with waiting, self._recorder.named_errors():
            while not concurrent.futures.wait([texts], _TICK_SECONDS).done:
                self._recorder.poll(time.monotonic() - begun)
            return texts.result()

    def _exchange(self, number: int, own: str, last: bool) -> list[str]:
        """Returns the texts of a meeting; waits without a limit."""
        block, index = divmod(number, _MEETINGS_REMOVED_AT_ONCE)
        topic = f"{_topics(block)}/{index}"
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
        if block and index == 0:
            # All have come here, and so have read the texts of the last meeting.
            upstream.remove_text(_topics(block - 1))
        return texts


def _topics(block: int) -> str:
    return f"keras_fastnet/meetings/{block}"
