"""Small data sets in place of those that the published programs download."""

import numpy as np


def images(count: int, classes: int = 4, size: int = 8, seed: int = 0):
    """Grey images in [0, 1], with a bright bar whose place tells the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    pixels = 0.3 * generator.random((count, size, size, 1))
    for image, label in zip(pixels, labels, strict=True):
        image[label * size // classes, :, 0] += 0.7
    return pixels, labels


def sentences(count: int, length: int = 10, words: int = 20, seed: int = 0):
    """Words by number, padded with 0; the label tells if most are of the upper half."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, words, (count, length))
    lengths = generator.integers(3, length + 1, count)
    valid = np.arange(length) < lengths[:, None]
    upper = ((tokens >= words // 2) & valid).sum(1)
    return np.where(valid, tokens, 0), (2 * upper > lengths).astype("int64")


def normal(*shape: int, seed: int = 0):
    """Random numbers that a program would draw in its step."""
    return np.random.default_rng(seed).normal(size=shape)
