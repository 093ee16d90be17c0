"""Code that both sides of the comparison share. Imports neither Keras."""

import statistics
import time

import numpy as np
import tensorflow as tf


def set_threads(threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def weights_and_gradients(shapes):
    """Returns kernels and gradients of a plausible size, the same on both sides."""
    rng = np.random.default_rng(0)
    weights = [0.05 * rng.standard_normal(s, dtype="float32") for s in shapes]
    gradients = [
        tf.constant(1e-3 * rng.standard_normal(s, dtype="float32")) for s in shapes
    ]
    return weights, gradients


def timed(update, repeats=3):
    """Returns the median milliseconds per update."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        update()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)
