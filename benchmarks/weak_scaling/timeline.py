"""Records when the collectives of one step run, relative to its backward pass."""

import pathlib
import tempfile

import keras
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2


class StepTimeline(keras.callbacks.Callback):
    """Profiles one step of `fit`.

    Args:
        step: Its number, from 0.

    Attributes:
        timeline: Milliseconds from the start of the backward pass; after `fit`.
    """

    def __init__(self, step: int):
        super().__init__()
        self.timeline: dict | None = None
        self._step = step

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self._step:
            self._folder = tempfile.TemporaryDirectory()
            tf.profiler.experimental.start(self._folder.name)

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._step:
            tf.profiler.experimental.stop()
            (file,) = pathlib.Path(self._folder.name).rglob("*.xplane.pb")
            self.timeline = _timeline(file)
            self._folder.cleanup()


def _timeline(file: pathlib.Path) -> dict:
    backward, collectives = [], []
    for kind, start, end in _operations(file):
        if "Backprop" in kind:
            backward.append((start, end))
        elif kind.startswith("Collective"):
            collectives.append((start, end, kind))
    origin = min(start for start, _ in backward)
    backward_end = max(end for _, end in backward) - origin
    collectives = sorted((a - origin, b - origin, kind) for a, b, kind in collectives)
    total = _covered(collectives, float("-inf"), float("inf"))
    during = _covered(collectives, 0.0, backward_end)
    return {
        "backward_end_ms": round(backward_end, 2),
        "collectives_ms": round(total, 2),
        "share_during_backward": round(during / total, 3) if total else None,
        "collectives": [
            {"operation": kind, "start_ms": round(a, 2), "end_ms": round(b, 2)}
            for a, b, kind in collectives
        ],
    }


def _operations(file):
    """Yields the kind, start and end in milliseconds of all operations."""
    for plane in xplane_pb2.XSpace.FromString(file.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                # "name of the node:kind of operation"
                name = plane.event_metadata[event.metadata_id].name
                start = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                yield name.rpartition(":")[2], start, start + event.duration_ps / 1e9


def _covered(intervals, least, most):
    """Returns the time within `least` to `most` in which any of `intervals` runs."""
    covered, reached = 0.0, least
    for start, end, _ in intervals:
        start, end = max(start, reached), min(end, most)
        if end > start:
            covered += end - start
            reached = end
    return covered
