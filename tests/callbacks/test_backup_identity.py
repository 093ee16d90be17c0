"""Backups of other trainings: refused with the parts that differ.

Two `fit`s go through it from end to end; the rest compares what `fit`s state.
"""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS, LargeBatchOptimizer, TorusStrategy
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import data_of
from keras_fastnet.batches.shares import OWN
from keras_fastnet.callbacks import BackupAndRestore, BatchGrowth, LearningRateWarmup
from keras_fastnet.callbacks.backups.identity import (
    checked_settings,
    differing_parts,
    identity_of,
)
from tests.callbacks.backup_trainings import arrays, fit
from tests.stopping import Stop


class Look(keras.callbacks.Callback):
    """Notes what a `fit` states, and ends it before its first step."""

    def on_train_begin(self, logs=None):
        self.seen = identity_of(self.model, data_of(self.model), self.siblings, 1)
        raise Stop


def dataset(shuffle):
    examples = tf.data.Dataset.from_tensor_slices(arrays())
    return (examples.shuffle(64) if shuffle else examples).batch(16)


def network(units=4, activation="relu", dropout=0.5, more=(), **settings):
    hidden = keras.layers.Dense(units, activation, **settings)
    ends = [keras.layers.Dropout(dropout), *more, keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), hidden, *ends])


def frozen():
    model = network()
    model.layers[0].trainable = False
    return model


def renamed():
    for _ in range(3):
        keras.layers.Dense(1)
    return network(name="hidden")


def sgd(rate=0.1, steps=1, **settings):
    settings = {"momentum": 0.9, **settings}
    return LargeBatchOptimizer(keras.optimizers.SGD(rate, **settings), steps)


def stated(
    *,
    seed=5,
    model=network,
    optimizer=sgd,
    loss="mse",
    data=arrays,
    callbacks=(),
    scope=contextlib.nullcontext,
    compiled=None,
    **options,
):
    """Returns what a training states."""
    keras.utils.set_random_seed(seed or 5)
    tf.random.set_seed(seed)
    given = data()
    if isinstance(given, tuple):
        given, y = given
        options = {"batch_size": 16, "y": y, **options}
    else:
        options["shuffle"] = False
    with scope():
        made = model()
        made.compile(optimizer(), loss, **(compiled or {}))
    look = Look()
    look.siblings = callbacks
    with pytest.raises(Stop):
        made.fit(given, epochs=4, verbose=0, callbacks=[look], **options)
    return look.seen


@pytest.fixture(scope="module")
def plain():
    return stated()


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)


def strategy_scope():
    return TorusStrategy().scope()


# Keras 2 shuffles arrays before they can be read.

# What the next training changes, and the part that differs.
DIFFERENT = {
    "units": ({"model": lambda: network(units=5)}, "model"),
    "a layer more": (
        {"model": lambda: network(more=[keras.layers.Dense(2)])},
        "model",
    ),
    "frozen layer": ({"model": frozen}, "model"),
    "optimizer class": (
        {"optimizer": lambda: LargeBatchOptimizer(LARS(0.1, momentum=0.9))},
        "optimizer",
    ),
    "momentum": ({"optimizer": lambda: sgd(momentum=0.8)}, "optimizer"),
    "learning rate": ({"optimizer": lambda: sgd(0.05)}, "learning rate"),
    "schedule": ({"optimizer": lambda: sgd(schedule())}, "optimizer"),
    "accumulation": ({"optimizer": lambda: sgd(steps=2)}, "accumulation steps"),
    "loss": ({"loss": "mae"}, "loss"),
    "weight of the loss": ({"compiled": {"loss_weights": [2.0]}}, "loss weights"),
    "a metric": ({"compiled": {"metrics": ["mae"]}}, "metrics"),
    "seed": ({"seed": 6}, "random seed"),
    "no seed": ({"seed": None}, "random seed"),
    "larger batch": ({"batch_size": 32}, "batch size"),
    "fewer examples": ({"data": lambda: arrays(63)}, "examples in an epoch"),
    "more examples": ({"data": lambda: arrays(80)}, "batches in an epoch"),
    "other targets": ({"data": lambda: (arrays()[0], -arrays()[1])}, "first examples"),
    "integers": (
        {"data": lambda: (arrays()[0].astype("int32"), arrays()[1])},
        "elements",
    ),
    "sample weights": ({"sample_weight": np.full(64, 2.0, "float32")}, "elements"),
    "a dataset in another order": ({"data": lambda: dataset(False)}, "first batch"),
    "shorter epochs": ({"steps_per_epoch": 3}, "batches in an epoch"),
    "warm-up": ({"callbacks": [LearningRateWarmup(0.2, 2)]}, "callbacks"),
    "growth": ({"callbacks": [BatchGrowth({0: 16, 1: 32})]}, "callbacks"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_training_that_differs(plain, case):
    changed, part = DIFFERENT[case]
    found = differing_parts(plain, stated(**changed), exact_order=True)
    assert part in found
    # What follows from it, at most.
    assert len(found) <= 4


# What the next training changes, and whether the backup is within an epoch.
EQUAL = {
    "nothing": ({}, True),
    "names of layers": ({"model": renamed}, True),
    "compiled another way": ({"compiled": {"run_eagerly": True}}, True),
    "validation": ({"validation_data": arrays(16)}, True),
    "a callback that watches": ({"callbacks": [keras.callbacks.History()]}, True),
    "a strategy": ({"scope": strategy_scope}, True),
    "a dataset in another order, between epochs": (
        {"data": lambda: dataset(False)},
        False,
    ),
}


@pytest.mark.parametrize("case", EQUAL)
def test_training_that_may_differ(plain, case):
    changed, within = EQUAL[case]
    assert differing_parts(plain, stated(**changed), exact_order=within) == {}


def by_length(sizes):
    """Batches whose sizes and order depend on the run, as of a bucketing dataset."""
    kinds = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    return tf.data.Dataset.from_generator(
        lambda: (tuple(part[:size] for part in arrays()) for size in sizes),
        output_signature=kinds,
    )


def test_batches_of_many_sizes_may_come_in_another_order_between_epochs():
    one = stated(data=lambda: by_length([24, 8]))
    other = stated(data=lambda: by_length([8, 24]))
    assert differing_parts(one, other, exact_order=False) == {}
    assert set(differing_parts(one, other, exact_order=True)) == {
        "batch size",
        "first batch",
    }


def test_shards_may_change_with_the_number_of_workers(plain):
    own = plain | {"sharding": OWN, "batch size": 32, "batches in an epoch": 2}
    assert differing_parts(own | {"workers": 2}, plain, exact_order=True) == {}
    assert set(differing_parts(own, plain, exact_order=True)) == {
        "batch size",
        "batches in an epoch",
    }


def check(theirs, mine, *may_differ):
    return checked_settings(
        theirs, mine, exact_order=True, may_differ=may_differ, location="folder"
    )


def test_error_names_parts_and_both_values(plain):
    other = stated(optimizer=lambda: sgd(0.05), seed=6)
    words = (
        r"learning rate: \(0\) 0.1\d* in the backup, 0.05\d* in this training; .*"
        r"`may_differ=\[.*'learning rate'.*\]`"
    )
    with pytest.raises(ValueError, match=words):
        check(plain, other)
    with pytest.raises(ValueError, match="random seed: 5 in the backup, 6 in this"):
        check(plain, other, "learning rate")
    slower = stated(optimizer=lambda: sgd(0.05))
    own = check(plain, slower, "learning rate")
    np.testing.assert_allclose(own["learning rate"], [0.05])
    # What callbacks have set is no setting: a training under way does not know it.
    assert check(plain, plain | {"learning rate": None}) == {}


def test_backup_of_another_model_raises(tmp_path):
    fit(tmp_path, stop_after=6)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    model = network(units=5)
    model.compile(LargeBatchOptimizer(LARS(0.1)), "mse")
    with pytest.raises(ValueError, match=r"these parts differ: model: .*in the backup"):
        fit(tmp_path, model=model)
    assert model.optimizer.iterations == 0
    # The other training may be running, and still owns the folder.
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parts_differ_on_request(tmp_path, capsys):
    def made(rate, metrics):
        keras.utils.set_random_seed(5)
        model = network()
        model.compile(sgd(rate), "mse", metrics=metrics)
        return model

    fit(tmp_path, model=made(0.1, []), stop_after=6)
    names = ["learning rate", "metrics"]
    model, logs = fit(tmp_path, model=made(0.05, ["mae"]), may_differ=names)
    assert "resuming at epoch 2, batch 3, after 6 updates" in capsys.readouterr().out
    np.testing.assert_allclose(model.optimizer.inner_optimizer.learning_rate, 0.05)
    assert len(logs["mae"]) == 2
    for unknown in (["rate"], "learning rate"):
        with pytest.raises(ValueError, match=r"The names are: .*, learning rate"):
            BackupAndRestore(tmp_path, may_differ=unknown)
