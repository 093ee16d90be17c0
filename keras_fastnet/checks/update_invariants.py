"""Invariants of an update: it equals one device's, and all workers apply the same.

Each function returns what it measured, or raises `InvariantError` if the invariant does
not hold. Its docstring is the name under which the invariant is printed.
"""

from typing import Any

import numpy as np

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.checks.probe import (
    OwnSteps,
    Probe,
    difference,
    in_float64,
    regression,
    require,
    small_model,
)
from keras_fastnet.checks.subject import Data, Subject, build, make_deterministic
from keras_fastnet.optimizers import LargeBatchOptimizer
from keras_fastnet.text import count

# The largest difference that adding in another order makes in a few updates, relative
# to the change of the weights.
TOLERANCE = 1e-3
# If a model's rounding errors are larger, a wrong update could hide among them.
LARGEST_ROUNDING = 0.01


def same_update(probe: Probe, subject: Subject) -> str:
    """the update of one device"""
    batch, updates = subject.examples_per_replica * probe.replicas, 3
    # Replicas get unequal shares of the last batch, except on a TPU.
    odd = 0 if probe.strategy.fit_support.compiles_all else 1
    examples = (updates - 1) * batch + batch // 2 + odd
    # Reversed within each batch: the same computation, rounded differently.
    turned = np.concatenate(
        [order[::-1] for order in np.split(np.arange(examples), [batch, 2 * batch])]
    )
    start: list[np.ndarray] | None = None

    def train(cluster: bool, order: np.ndarray) -> tuple[list[np.ndarray], float]:
        nonlocal start
        with probe.on(cluster), in_float64():
            model = subject.make_model()
            data = subject.data(model, examples)
            build(model, data[0])
            changes.update(make_deterministic(model))
            start = start or model.get_weights()
            model.set_weights(start)
            data = keras.tree.map_structure(lambda part: part[order], data)
            options = {"batch_size": batch, "shuffle": False, "verbose": 0}
            history = model.fit(**_named(data), **options).history
        return model.get_weights(), history["loss"][-1]

    changes: set[str] = set()
    in_order = np.arange(examples)
    one, its_loss = train(False, in_order)
    moved = difference(one, start or [])
    require(
        moved > 0,
        "the updates did not change the weights, so there is nothing to compare",
    )
    rounding = difference(train(False, turned)[0], one) / moved
    if rounding > LARGEST_ROUNDING:
        raise ValueError(
            "A model can be compared only if its updates do not depend on rounding. "
            f"Received: {subject.name}. On one device, its weights differ by "
            f"{rounding:.0%} of their change when the examples of a batch are in "
            "another order. Check it with a smaller learning rate, without mixed "
            "precision, or with other data."
        )
    several, loss = train(True, in_order)
    apart = difference(several, one) / moved
    seen = f"{updates} updates, weights differ by {apart:.1e} of their change"
    require(apart <= max(TOLERANCE, 10 * rounding), seen)
    require(
        abs(loss - its_loss) <= TOLERANCE * abs(its_loss),
        f"loss {loss:.6g} instead of {its_loss:.6g}",
    )
    return "; ".join([seen, *sorted(changes)])


def equal_weights(probe: Probe, subject: Subject) -> str:
    """equal weights on every worker"""
    with probe.on(cluster=True):
        model = subject.make_model()
        batch = subject.examples_per_replica * probe.replicas
        data = subject.data(model, 2 * batch + 1)
    model.fit(**_named(data), batch_size=batch, verbose=0)
    marks = [float(np.sum(w, dtype="float64")) for w in model.get_weights()]
    mark = float(np.dot(marks, np.cos(np.arange(len(marks)))))
    marks = probe.of_all_workers(mark)
    require(len(set(marks)) == 1, f"sums of the weights, by rank: {marks}")
    return f"bit for bit, on {count(len(marks), 'worker')}"


def _named(data: Data) -> dict[str, Any]:
    """Returns data as arguments of `fit`."""
    return dict(zip(("x", "y", "sample_weight"), data, strict=False))


def examples_weigh_the_same(probe: Probe, subject: Subject) -> str:
    """every example and every unmasked step weighs the same"""
    # The last batch has a single example, which one replica gets.
    size = 2 * probe.replicas + 1
    generator = np.random.default_rng(0)
    tokens = generator.integers(1, 9, size=(size, 6))
    lengths = generator.integers(1, 7, size=size)
    tokens[np.arange(6) >= lengths[:, None]] = 0
    weights = generator.uniform(0.1, 2.0, size=(size, 1)).astype("float32")
    apart = 0.0
    for mask, reduction in ((True, "sum_over_batch_size"),
                            (False, "mean_with_sample_weight")):  # fmt: skip
        found, start = [], None
        for cluster in (False, True):
            with probe.on(cluster):
                model = keras.Sequential(
                    [
                        keras.Input((6,), dtype="int32"),
                        keras.layers.Embedding(9, 4, mask_zero=mask),
                        keras.layers.Dense(3, activation="softmax"),
                    ]
                )
                loss = keras.losses.SparseCategoricalCrossentropy(reduction=reduction)
                model.compile(keras.optimizers.SGD(0.5), loss)
                start = start or model.get_weights()
                model.set_weights(start)
                model.fit(
                    *(tokens, tokens % 3, 2 * probe.replicas),
                    sample_weight=None if mask else weights,
                    epochs=2,
                    shuffle=False,
                    verbose=0,
                )
            found.append(model.get_weights())
        apart = max(apart, difference(*found) / difference(found[0], start or []))
        what = "a mask" if mask else "sample weights"
        require(apart <= TOLERANCE, f"with {what} weights differ by {apart:.1e}")
    return f"masks and sample weights: to {apart:.1e}"


def own_steps(probe: Probe, subject: Subject) -> str:
    """a train_step and a test_step of one's own do what one device does"""
    batch = 2 * probe.replicas + (0 if probe.strategy.fit_support.compiles_all else 1)
    start: list[np.ndarray] | None = None
    found = []
    for cluster in (False, True):
        with probe.on(cluster), in_float64():
            x, y = (part.astype("float64") for part in regression(2 * batch))
            model = OwnSteps()
            model(x[:1])
            model.compile(keras.optimizers.SGD(0.02), "mae")
            start = start or model.get_weights()
            model.set_weights(start)
            options = {"batch_size": batch, "verbose": 0}
            history = model.fit(x, y, shuffle=False, epochs=2, **options).history
            logs = model.evaluate(x, y, return_dict=True, **options)
            losses = [*history["total"], logs["total"]]
        found.append((model.get_weights(), losses))
    (one, its_losses), (several, losses) = found
    apart = difference(several, one) / difference(one, start or [])
    seen = f"weights differ by {apart:.1e} of their change"
    require(apart <= TOLERANCE, seen)
    require(
        np.allclose(losses, its_losses, rtol=TOLERANCE),
        f"logged losses {losses} instead of {its_losses}",
    )
    return f"{seen}, logged losses are equal"


def several_steps(probe: Probe, subject: Subject) -> str:
    """steps in one call of TensorFlow are those of one device"""
    batch, in_a_call, batches = 2 * probe.replicas, 4, 9
    # Replicas get unequal shares of the last batch, except on a TPU.
    odd = 0 if probe.strategy.fit_support.compiles_all else 1
    x, y = regression((batches - 1) * batch + probe.replicas + odd)
    start: list[np.ndarray] | None = None
    found = []
    for cluster in (False, True):
        with probe.on(cluster):
            model = small_model()
            model.compile(
                keras.optimizers.SGD(0.05),
                "mse",
                steps_per_execution=in_a_call if cluster else 1,
            )
            start = start or model.get_weights()
            model.set_weights(start)
            options = {"batch_size": batch, "shuffle": False, "verbose": 0}
            history = model.fit(x, y, epochs=2, **options).history
        updates = int(model.optimizer.iterations.numpy())
        found.append((updates, model.get_weights(), history["loss"]))
    (its_updates, one, its_losses), (updates, several, losses) = found
    require(updates == its_updates, f"{updates} updates instead of {its_updates}")
    apart = difference(several, one) / difference(one, start or [])
    seen = f"{batches} batches in calls of {in_a_call}, weights differ by {apart:.1e}"
    require(apart <= TOLERANCE, f"{seen} of their change")
    require(
        np.allclose(losses, its_losses, rtol=TOLERANCE),
        f"logged losses {losses} instead of {its_losses}",
    )
    return f"{seen} of their change"


def micro_batches(probe: Probe, subject: Subject) -> str:
    """micro-batches make the update of one large batch"""
    size, steps = 2 * probe.replicas, 4
    # One update of four global micro-batches, and one of two, of which the last is a
    # single example.
    x, y = regression(5 * size + 1)
    start: list[np.ndarray] | None = None
    found = []
    for cluster, accumulates in ((False, False), (False, True), (True, True)):
        with probe.on(cluster):
            model = small_model()
            optimizer = keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)
            if accumulates:
                optimizer = LargeBatchOptimizer(optimizer, steps)
            model.compile(optimizer, "mse")
            start = start or model.get_weights()
            model.set_weights(start)
            batch = size if accumulates else steps * size
            options = {"batch_size": batch, "shuffle": False, "verbose": 0}
            history = model.fit(x, y, validation_data=(x, y), **options).history
            model.fit(x, y, **options)
        updates = int(model.optimizer.iterations.numpy())
        found.append((updates, model.get_weights(), history["val_loss"][0]))
    updates, one, its_loss = found[0]
    largest = 0.0
    for where, (own_updates, weights, loss) in zip(
        ("one device", "the workers"), found[1:], strict=True
    ):
        require(
            own_updates == updates,
            f"on {where}: {own_updates} updates instead of {updates}",
        )
        apart = difference(weights, one) / difference(one, start or [])
        largest = max(largest, apart)
        require(apart <= TOLERANCE, f"on {where} weights differ by {apart:.1e}")
        require(
            abs(loss - its_loss) <= TOLERANCE * its_loss,
            f"on {where}: validation loss {loss:.6g} instead of {its_loss:.6g}",
        )
    return f"{updates} updates, weights differ by {largest:.1e} of their change"


def overflow_agreement(probe: Probe, subject: Subject) -> str:
    """an overflow on one replica skips the update on all"""
    batch = 2 * probe.replicas
    x, y = regression(batch)
    # Only in the last replica's share.
    x[-1] = np.inf
    kinds: tuple[tuple[Any, dict[str, Any]], ...] = (
        (keras.optimizers.LossScaleOptimizer, {}),
        (LargeBatchOptimizer, {"loss_scaling": True}),
    )
    for wrapper, options in kinds:
        with probe.on(cluster=True):
            model = small_model()
            inner = keras.optimizers.SGD(0.1)
            optimizer = wrapper(inner, initial_scale=1024.0, **options)
            model.compile(optimizer, "mse")
        before = model.get_weights()
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
        moved = difference(model.get_weights(), before)
        scales = probe.of_all_workers(scale)
        name = wrapper.__name__
        everywhere = set(probe.of_all_workers(moved)) == {0.0}
        require(everywhere, f"{name}: the weights moved by {moved:g}")
        require(
            set(scales) == {512.0}, f"{name}: scales {scales} by rank, not 512 on all"
        )
    return "the weights stay, the scale halves"
