"""Generates small data sets that replace those of the published programs."""

import numpy as np


def images(count: int, classes: int = 4, size: int = 8, seed: int = 0):
    """Returns grey images in [0, 1] and classes, given by a bright bar's position."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    pixels = 0.3 * generator.random((count, size, size, 1))
    for image, label in zip(pixels, labels, strict=True):
        image[label * size // classes, :, 0] += 0.7
    return pixels, labels


def sentences(count: int, length: int = 10, words: int = 20, seed: int = 0):
    """Returns padded word numbers."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, words, (count, length))
    lengths = generator.integers(3, length + 1, count)
    valid = np.arange(length) < lengths[:, None]
    return np.where(valid, tokens, 0)


def normal(*shape: int, seed: int = 0):
    """Returns random numbers that the published program draws in its step."""
    return np.random.default_rng(seed).normal(size=shape)
