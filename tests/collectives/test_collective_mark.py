"""Marks around collectives tell how long the present one has run.

tests/cluster/test_late_workers.py has those that wait.
"""

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
