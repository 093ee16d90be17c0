"""The iterators behind Keras's loops: where they end."""

import subprocess
import sys
import threading

import pytest
import tensorflow as tf

from keras_fastnet.batches.epoch_data import Elements, EpochData


class Watched:
    """Yields three batches, and notes which thread lets go of it."""

    def __init__(self, let_go, threads):
        self._let_go, self._threads = let_go, threads
        self._left = 3

    def __iter__(self):
        return self

    def __next__(self):
        if not self._left:
            raise StopIteration
        self._left -= 1
        return tf.zeros([2, 1])

    def __del__(self):
        self._threads.append(threading.current_thread())
        self._let_go.set()


@pytest.mark.parametrize("batches", [2, 4])
def test_the_end_of_an_iterator_does_not_block_the_loop(batches):
    """It may take a minute: TensorFlow's autotuner sleeps on when it is told to end."""
    let_go, threads = threading.Event(), []
    epoch = iter(EpochData(lambda: Elements(Watched(let_go, threads))))
    epoch.peek()
    for batch in range(batches):
        if batch < 3:
            next(epoch)
        else:
            with pytest.raises(tf.errors.OutOfRangeError):
                next(epoch)
    if batches < 4:
        del epoch
    assert let_go.wait(60)
    assert threads != [threading.main_thread()]


TRAINING = """
import time
import keras
import tensorflow as tf
from keras_fastnet import TorusStrategy

def batches():
    try:
        while True:
            yield tf.ones([8, 4]), tf.ones([8, 1])
    finally:
        time.sleep(1)
        print("closed")

types = tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1])
with TorusStrategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_generator(batches, output_signature=types)
model.fit(data, steps_per_epoch=2, verbose=0)
"""


@pytest.mark.landing
def test_a_program_ends_after_its_iterators():
    """A thread that returns from TensorFlow later aborts the process (SIGABRT)."""
    command = [sys.executable, "-c", TRAINING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "closed" in done.stdout


def test_an_ended_iterator_stays_ended():
    begun = []

    def begin():
        begun.append(None)
        return Elements(iter([tf.zeros([2, 1])]))

    epoch = iter(EpochData(begin))
    next(epoch)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            next(epoch)
    assert len(begun) == 1
