"""Marks around collectives tell how long the present one has run."""

import threading
import time

import tensorflow as tf

from keras_fastnet.collectives.collective_mark import CollectiveMark


def test_collectives_that_end_between_two_looks_are_no_waits():
    mark = CollectiveMark("CPU:0")
    one = tf.constant(1.0)

    @tf.function
    def many():
        for _ in tf.range(20_000):
            mark.around(one, lambda: tf.identity(one))

    running = threading.Thread(target=many)
    running.start()
    waits = []
    while running.is_alive():
        waits.append(mark.waited())
    running.join()
    # A machine that is on for longer would be told that one has run since it started.
    assert max(waits) < min(60.0, time.monotonic())
    assert mark.waited() == 0.0


def test_the_present_collective_is_timed():
    mark = CollectiveMark("CPU:0")
    ended = threading.Event()

    def wait(value):
        ended.wait(60)
        return value

    one = tf.constant(1.0)
    function = tf.function(
        lambda: mark.around(one, lambda: tf.numpy_function(wait, [one], tf.float32))
    )
    running = threading.Thread(target=function)
    running.start()
    try:
        begun = time.monotonic()
        while not mark.waited():
            assert time.monotonic() < begun + 60
        first = mark.waited()
        time.sleep(0.1)
        assert mark.waited() >= first + 0.1
    finally:
        ended.set()
        running.join()
    assert mark.waited() == 0.0
