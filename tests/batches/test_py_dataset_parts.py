"""A `PyDataset` of whose batches each worker makes its parts, without replicas."""

import random

import keras
import numpy as np
import pytest
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from keras_fastnet._keras.adapters import install_changes
from keras_fastnet._keras.keras3.py_datasets import (
    dataset_of_parts,
    first_only,
    separate_iterators,
)
from keras_fastnet.batches.shares import shares_of
from keras_fastnet.errors import ShardingError

ROWS, SIZE = 43, 8
install_changes()


class Parts(keras.utils.PyDataset):
    """Batches of which parts can be made; whole ones cannot."""

    extra = 0

    def __init__(self, **options):
        super().__init__(**options)
        self.x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
        self.y = np.arange(ROWS) % 3

    def __len__(self):
        return -(-ROWS // SIZE)

    def examples_in_batch(self, index):
        return min(SIZE, ROWS - index * SIZE)

    def part_of_batch(self, index, start, stop):
        # Draws, as augmentation does, another number of times on every worker.
        random.random()
        rows = slice(index * SIZE + start, index * SIZE + stop + self.extra)
        return {"x": self.x[rows]}, self.y[rows]


class Whole(Parts):
    """The same as whole batches, as for one device."""

    part_of_batch = None
    examples_in_batch = None

    def __getitem__(self, index):
        rows = slice(index * SIZE, index * SIZE + SIZE)
        return {"x": self.x[rows]}, self.y[rows]


class Endless(Parts):
    num_batches = None

    def examples_in_batch(self, index):
        return super().examples_in_batch(index % 6)

    def part_of_batch(self, index, start, stop):
        return super().part_of_batch(index % 6, start, stop)


def adapter_of(dataset, **options):
    random.seed(5)
    adapter = PyDatasetAdapter(dataset, **options)
    separate_iterators(adapter)
    return adapter


def shared(adapter, positions, replicas):
    made = dataset_of_parts(PyDatasetAdapter.get_tf_dataset, adapter, 2)
    return shares_of(made, positions, replicas)


THREE, TWO_BY_TWO = [[0], [1], [2]], [[0, 2], [1, 3]]
POOL = {"workers": 2, "use_multiprocessing": True}


@pytest.mark.parametrize(
    ("options", "shuffle", "cluster"),
    [
        ({}, False, THREE),
        ({"workers": 2}, True, TWO_BY_TWO),
        (POOL, True, TWO_BY_TWO),
    ],
    ids=str,
)
def test_the_union_of_the_parts_is_the_batch(options, shuffle, cluster):
    adapting = {"shuffle": shuffle, "class_weight": {0: 1.0, 1: 2.0, 2: 3.0}}
    one = adapter_of(Whole(), **adapting).get_tf_dataset()
    batches = [list(one) for _ in range(2)]
    replicas, devices = sum(map(len, cluster)), len(cluster[0])
    workers = []
    for positions in cluster:
        shares = shared(adapter_of(Parts(**options), **adapting), positions, replicas)
        assert shares.sharding == f"each worker makes 1/{len(cluster)} of each batch"
        # An epoch of each worker after the other, each with its own draws.
        workers.append([list(shares.dataset) for _ in range(2)])
    for epoch, expected in enumerate(batches):
        seen = [worker[epoch] for worker in workers]
        assert {len(own) for own in seen} == {len(expected)}
        for step, (x, y, weight) in enumerate(expected):
            parts = [own[step][device] for device in range(devices) for own in seen]
            rows = [[leaf[: part.own] for leaf in leaves(part)] for part in parts]
            for whole, *own in zip((x["x"], y, weight), *rows, strict=True):
                np.testing.assert_array_equal(np.concatenate(own), whole)
            assert {int(part.examples) for part in parts} == {len(y)}
            marks = {str(part.fingerprint.numpy()) for part in parts}
            assert len(marks) == 1
            assert ("-1 -1 -1" in marks.pop()) == (step > 0)


def leaves(part):
    x, y, weight = part.data
    return x["x"], y, weight


def test_a_look_at_the_first_batch_begins_no_epoch():
    adapter = adapter_of(Parts(), shuffle=True)
    shares = shared(adapter, [1], 2)
    with first_only(adapter):
        ((first,),) = shares.dataset
    np.testing.assert_array_equal(first.data[0]["x"], Parts().x[4:8])
    assert len(list(shares.dataset)) == 6


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_without_an_end(workers):
    shares = shared(adapter_of(Endless(workers=workers)), [1], 2).dataset
    seen = np.concatenate([part.data[1][: part.own] for (part,) in shares.take(8)])
    expected = [range(4, 8), range(12, 16), range(20, 24), range(28, 32)]
    expected += [range(36, 40), range(41, 43), range(4, 8), range(12, 16)]
    assert seen.tolist() == [row % 3 for rows in expected for row in rows]


class OneMethod(Whole):
    def examples_in_batch(self, index):
        return SIZE


class WrongCount(Parts):
    def examples_in_batch(self, index):
        return 0.5


class Longer(Parts):
    extra = 1


class LaterLonger(Parts):
    def part_of_batch(self, index, start, stop):
        self.extra = int(index == 3)
        return super().part_of_batch(index, start, stop)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        (OneMethod, ValueError, ["`OneMethod.part_of_batch`", "must have both"]),
        (WrongCount, ShardingError, ["`WrongCount.examples_in_batch", "0.5"]),
        (Longer, ShardingError, ["`Longer.part_of_batch", "5 from `part_of_batch(0, "]),
    ],
)
def test_wrong_methods_raise_before_training(kind, error, words):
    with pytest.raises(error) as raised:
        shared(adapter_of(kind()), [0], 2)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_wrong_part_of_a_later_batch_raises(workers):
    shares = shared(adapter_of(LaterLonger(workers=workers)), [1], 2).dataset
    with pytest.raises(Exception, match=r"5 from `part_of_batch\(3, 4, 8\)`"):
        list(shares)


def test_one_worker_makes_whole_batches():
    adapter = adapter_of(Whole())
    made = dataset_of_parts(PyDatasetAdapter.get_tf_dataset, adapter, 1)
    assert shares_of(made, [0, 1], 2).sharding.startswith("every worker reads all")
