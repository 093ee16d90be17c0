"""Scenarios of silent failures in distributed and large-batch training.

Each runs with either kit and is numbered as its row in docs/traps.md. It returns the
observation as text, and whether it is right.
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import Any

import numpy as np
import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.errors import MismatchError, ShardingError
from tests.stopping import Stop, StopAfter
from tests.traps.kits import Ours

Seen = tuple[str, bool]
SGD = keras.optimizers.SGD


def line(optimizer: Any, loss: Any = "mse", start: float = 1.0) -> keras.Model:
    """Returns a compiled model with one weight."""
    layer = keras.layers.Dense(
        1, use_bias=False, kernel_initializer=keras.initializers.Constant(start)
    )
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, loss)
    return model


def column(*values: float) -> np.ndarray:
    return np.array(values, "float32")[:, None]


def update(kit: Any, make: Any, x: Any, y: Any, loss: Any = "mse") -> float:
    """Returns how far updates with batches of 4 examples move the weight."""
    with kit.strategy.scope():
        model = line(make(), loss)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return 1.0 - float(model.get_weights()[0].item())


def expected_update(make: Any, x: Any, y: Any, kit: Any, loss: Any = "mse") -> float:
    """Returns the same on one device."""
    with kit.one_device():
        model = line(make(), loss)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return 1.0 - float(model.get_weights()[0].item())


def compared(kit: Any, make: Any, x: Any, y: Any, loss: Any = "mse") -> Seen:
    one = expected_update(make, x, y, kit, loss)
    several = update(kit, make, x, y, loss)
    text = f"update {several:.4g}; {one:.4g} on one device"
    return text, bool(np.isclose(several, one, rtol=1e-4))


def clipping(kit: Any) -> Seen:
    """1: clipping before the reduction"""
    x = column(1, 1)
    return compared(kit, lambda: SGD(1.0, clipnorm=1e-3), x, 0 * x)


def overflow(kit: Any) -> Seen:
    """2: overflow on one replica, dynamic loss scaling"""
    with kit.strategy.scope():
        optimizer = keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=8.0)
        model = line(optimizer)
    x = column(1, np.inf)
    model.fit(x, column(0, 0), batch_size=2, shuffle=False, verbose=0)
    weight = float(model.get_weights()[0].item())
    scale = float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))
    return f"weight {weight:g}, scale 8 to {scale:g}", (weight, scale) == (1.0, 4.0)


def dropout(kit: Any) -> Seen:
    """3: one dropout mask"""
    with kit.strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)
    run = tf.function(
        lambda: kit.strategy.run(lambda: layer(tf.ones([1, 64]), training=True))
    )
    one, other = kit.strategy.experimental_local_results(run())
    same = bool(np.array_equal(one, other))
    return f"{'one mask' if same else 'a mask each'} on 2 replicas", not same


def scalar_loss(kit: Any) -> Seen:
    """4: a loss function that returns a scalar"""
    x = column(1, 1)
    loss = lambda y, p: keras.ops.mean((y - p) ** 2)  # noqa: E731
    return compared(kit, lambda: SGD(0.01), x, 0 * x, loss)


class MeanByHand(keras.Model):
    """One weight, trained by a `train_step` that takes its own mean."""

    def __init__(self) -> None:
        super().__init__()
        self.line = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, x: Any) -> Any:
        return self.line(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x)) ** 2)
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


def own_train_step(kit: Any) -> Seen:
    """22: a train_step that takes its own mean"""
    x = column(1, 1, 2, 2)
    moved = []
    for scope in (kit.strategy.scope(), kit.one_device()):
        with scope:
            model = MeanByHand()
            model(x[:1])
            model.compile(SGD(0.01))
        model.fit(x, 0 * x, batch_size=4, verbose=0)
        moved.append(1.0 - float(model.get_weights()[0].item()))
    several, one = moved
    text = f"update {several:.4g}; {one:.4g} on one device"
    return text, bool(np.isclose(several, one, rtol=1e-4))


def partial_batch(kit: Any) -> Seen:
    """6: partial last batch"""
    x = column(1, 1, 1, 1, 2)
    return compared(kit, lambda: SGD(0.01), x, 0 * x)


def schedule(kit: Any) -> Seen:
    """9: learning-rate schedule counts micro-batches"""
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.1, 0.0])
    with kit.one_device():
        optimizer = kit.accumulating(lambda **kw: SGD(rates, **kw), 4)
        model = line(optimizer)
    x = column(*[1.0] * 32)
    model.fit(x, 0 * x, batch_size=1, verbose=0)
    # 8 updates, of which 5 (at 0 to 4) have a rate above 0.
    weight = float(model.get_weights()[0].item())
    moved = round(np.log(weight) / np.log(0.8)) if weight else 0
    updates = int(optimizer.iterations.numpy())
    text = f"{updates} updates counted, {moved} with the first rate, of 8 and 5"
    return text, (updates, moved) == (8, 5)


def resume_within_an_epoch(kit: Any) -> Seen:
    """10: resume in mid-epoch"""

    def train(folder: str, *callbacks: Any) -> int:
        keras.utils.set_random_seed(1)
        with kit.one_device():
            model = line(kit.accumulating(lambda **kw: SGD(0.01), 1))
        x = column(*np.linspace(-1, 1, 10))
        backup = kit.backup(folder)
        model.fit(x, 2 * x, batch_size=1, verbose=0, callbacks=[backup, *callbacks])
        return int(model.optimizer.iterations.numpy())

    with tempfile.TemporaryDirectory() as folder:
        try:
            train(folder + "/backup", StopAfter(5))
        except Stop:
            updates = train(folder + "/backup")
    return f"{updates} updates of 10 batches", updates == 10


def backup_of_another_training(kit: Any) -> Seen:
    """28: a backup of another training"""

    def train(
        folder: str,
        *callbacks: Any,
        seed: int = 1,
        target: float = 2.0,
        batch: int = 1,
        loss: str = "mse",
        make: Any = SGD,
    ) -> None:
        keras.utils.set_random_seed(seed)
        with kit.one_device():
            model = line(kit.accumulating(lambda **kw: make(0.01), 1), loss)
        x = column(*np.linspace(-1, 1, 10))
        callbacks = (kit.backup(folder), *callbacks)
        model.fit(
            x, target * x, batch_size=batch, epochs=2, verbose=0, callbacks=callbacks
        )

    changes: dict[str, dict[str, Any]] = {
        "seed": {"seed": 2},
        "data": {"target": -2.0},
        "batch": {"batch": 2},
        "loss": {"loss": "mae"},
        "optimizer": {"make": keras.optimizers.Adagrad},
    }
    refused = []
    for name, changed in changes.items():
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.suppress(Stop):
                train(folder + "/backup", StopAfter(5))
            try:
                train(folder + "/backup", **changed)
            except ValueError as error:
                if "must be of the same training" in str(error):
                    refused.append(name)
    accepted = [name for name in changes if name not in refused]
    if accepted:
        return f"another {', '.join(accepted)}: accepted", False
    return "each refused by name", True


def exclusion_by_name(kit: Any) -> Seen:
    """11: an exclusion from weight decay that matches nothing"""
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    try:
        if isinstance(kit, Ours):
            optimizer = keras_fastnet.LARS(exclude_from_weight_decay=["batch_norm"])
        else:
            optimizer = SGD(0.1, weight_decay=0.1)
            optimizer.exclude_from_weight_decay(var_names=["batch_norm"])
        optimizer.build(layer.trainable_variables)
    except ValueError as error:
        return "refused", "matches none of the" in str(error)
    return "accepted without a word", False


def warm_up(kit: Any) -> Seen:
    """13: warm-up that never warms"""
    if isinstance(kit, Ours):
        try:
            keras_fastnet.callbacks.LearningRateWarmup(0.1, 10, start=0.1)
        except ValueError:
            return "refused", True
        return "accepted", False
    rate = keras.optimizers.schedules.CosineDecay(0.1, 100, warmup_steps=10)
    rates = [float(rate(step)) for step in (0, 5, 10)]
    text = ", ".join(f"{r:.4f}" for r in rates)
    return f"rates {text}", rates[2] > rates[0]


def growing_batch(kit: Any) -> Seen:
    """14: batch grows, steps or rate do not follow"""
    x = column(*np.linspace(-1, 1, 16))
    with kit.one_device():
        model = line(kit.accumulating(lambda **kw: SGD(0.01), 1))
    counts: list[int] = []

    class Count(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            done = int(self.model.optimizer.iterations.numpy())
            counts.append(done - sum(counts))

    options = kit.growing(x, 2 * x)
    options["callbacks"] = [*options.get("callbacks", []), Count()]
    model.fit(**options, epochs=3, verbose=0)
    return f"updates by epoch: {counts}, of 4, 2, 2", counts == [4, 2, 2]


def described_too_late(kit: Any) -> Seen:
    """15: a cluster that is described after the strategy was made"""
    with kit.strategy.scope():
        model = line(SGD(0.1))
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    task = {"type": "worker", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    try:
        model.fit(column(1, 1), column(0, 0), verbose=0)
    except RuntimeError as error:
        return "refused", "after the strategy was made" in str(error)
    finally:
        del os.environ["TF_CONFIG"]
    return "1 worker of 2 trains alone", False


def unknown_cardinality(kit: Any) -> Seen:
    """16: unknown cardinality"""
    x = column(*[1.0] * 32)
    dataset = tf.data.Dataset.from_tensor_slices((x, 0 * x)).batch(1)
    with kit.one_device():
        model = line(kit.accumulating(lambda **kw: SGD(0.01), 1))
    model.fit(dataset.filter(lambda *_: True), shuffle=False, verbose=0)
    updates = int(model.optimizer.iterations.numpy())
    return f"{updates} updates of 32 batches", updates == 32


def configuration(kit: Any) -> Seen:
    """18: configuration round trip"""
    ours = isinstance(kit, Ours)
    with kit.one_device():
        if ours:
            optimizer = keras_fastnet.LARS(
                1.0, weight_decay=0.1, exclude_from_weight_decay=["kernel"]
            )
        else:
            optimizer = SGD(1.0, weight_decay=0.1)
            optimizer.exclude_from_weight_decay(var_names=["kernel"])
        model = line(optimizer)
        model.fit(column(0), column(0), verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.keras"
            model.save(path)
            loaded = keras.models.load_model(path)
    loaded.fit(column(0), column(0), verbose=0)
    weight = float(loaded.get_weights()[0].item())
    return f"an excluded weight of 1 is {weight:g} after loading", weight == 1.0


def own_test_step(kit: Any) -> Seen:
    """29: overridden `test_step` with one more log, unequal shares"""

    class Tested(keras.Sequential):
        def test_step(self, data: Any) -> Any:
            x, y = data
            logs = super().test_step(data)
            return {**logs, "again": tf.reduce_mean((self(x) - y) ** 2)}

    def logged(scope: Any) -> list[float]:
        with scope:
            layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
            model = Tested([keras.Input((1,)), layer])
            model.compile(SGD(0.1), "mse")
        x = column(1, 1, 1, 1, 1, 1, 2)
        logs = model.evaluate(x, 0 * x, batch_size=4, verbose=0, return_dict=True)
        return [float(logs["loss"]), float(logs["again"])]

    one, several = logged(kit.one_device()), logged(kit.strategy.scope())
    text = f"loss and log {several[0]:.4g}, {several[1]:.4g}"
    text += f"; {one[0]:.4g}, {one[1]:.4g} on one device"
    return text, bool(np.allclose(several, one, rtol=1e-4))


def calls_of_several_steps(kit: Any) -> Seen:
    """30: `steps_per_execution` that does not divide the epoch"""
    ends: list[int] = []

    class Notice(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(batch)

    with kit.strategy.scope():
        model = line(SGD(0.01))
        model.compile(SGD(0.01), "mse", steps_per_execution=3)
    x = column(*[1.0] * 8)
    try:
        model.fit(x, 0 * x, batch_size=2, verbose=0, callbacks=[Notice()])
    except tf.errors.InvalidArgumentError:
        return "InvalidArgumentError", False
    text = f"`on_train_batch_end` at {ends}, of [2, 5]"
    return text, ends == [2, 5]


def py_dataset_workers(kit: Any) -> Seen:
    """24: `PyDataset(workers=2)` of more batches than are prepared ahead"""
    seen: list[int] = []

    class Notice(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            tf.py_function(lambda v: seen.extend(v.numpy().ravel().tolist()), [x], [])
            return x

    class Data(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 25

        def __getitem__(self, index: int) -> Any:
            x = column(2 * index, 2 * index + 1)
            return x, x

    with kit.strategy.scope():
        notice = Notice()
        model = keras.Sequential([keras.Input((1,)), notice, keras.layers.Dense(1)])
        model.compile(SGD(0.0), "mse")
    model.evaluate(Data(workers=2), verbose=0)
    times = [seen.count(i) for i in range(50)]
    more, never = sum(n > 1 for n in times) // 2, times.count(0) // 2
    return f"{more} batches of 25 more than once, {never} never", set(times) == {1}


def state_that_is_no_sum(kit: Any) -> Seen:
    """32: a metric whose state is a maximum"""

    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="largest")
            self.value = self.add_weight(name="value", initializer="zeros")

        def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
            self.value.assign(keras.ops.maximum(self.value, keras.ops.max(p)))

        def result(self) -> Any:
            return self.value

    with kit.strategy.scope():
        model = line(SGD(0.1))
        model.compile("sgd", "mse", metrics=[Largest()])
    output = io.StringIO()
    x = column(1, 2, 3, 4)
    with contextlib.redirect_stdout(output):
        logs = model.evaluate(x, x, batch_size=4, verbose=0, return_dict=True)
    value = float(logs["largest"])
    if "metric largest (Largest)" in output.getvalue():
        return f"a maximum of {value:g} for 4, named in a line", True
    return f"a maximum of {value:g} for 4", value == 4.0


def weights_assigned_by_a_step(kit: Any) -> Seen:
    """33: a `train_step` that assigns weights by a replica's own gradient"""

    class ByHand(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self(x) - y) ** 2)
            (weight,) = self.trainable_variables
            weight.assign(weight - 0.1 * tape.gradient(loss, weight.value))
            return {"loss": loss}

    with kit.strategy.scope():
        inner = line(SGD(0.1))
        model = ByHand(inner.inputs, inner.outputs)
        model.compile()
    x = column(1, 2, 3, 4)
    try:
        model.fit(x, 0 * x, batch_size=4, shuffle=False, verbose=0)
    except tf.errors.InvalidArgumentError as error:
        return "refused", "must assign the same values" in str(error)
    (weight,) = model.trainable_variables
    local = kit.strategy.experimental_local_results(weight.value)
    values = [round(float(each.numpy().item()), 4) for each in local]
    return f"weights {values} on 2 replicas", len(set(values)) == 1


def cluster_left_out(kit: Any) -> Seen:
    """36: TF_CONFIG with a task and no cluster"""
    task = {"type": "worker", "index": 1}
    sparse = {"worker": {"1": "127.0.0.1:2"}}
    os.environ["TF_CONFIG"] = json.dumps({"sparseCluster": sparse, "task": task})
    try:
        if isinstance(kit, Ours):
            keras_fastnet.TorusStrategy(grid="ring")
        else:
            tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        return "refused", "TF_CONFIG is malformed" in str(error)
    finally:
        del os.environ["TF_CONFIG"]
    return "worker 1 trains alone", False


def best_weights_after_a_restart(kit: Any) -> Seen:
    """37: `EarlyStopping(restore_best_weights=True)`, resumed after its best epoch"""

    def train(folder: str, *callbacks: Any) -> float:
        with kit.one_device():
            # Each update multiplies the weight by -1.1, so the first epoch is the best.
            model = line(kit.accumulating(lambda **kw: SGD(1.05), 1))
        best = keras.callbacks.EarlyStopping(
            "loss", patience=9, restore_best_weights=True
        )
        callbacks = (best, kit.backup(folder), *callbacks)
        model.fit(column(1), column(0), epochs=4, verbose=0, callbacks=callbacks)
        return float(model.get_weights()[0].item())

    keras.utils.set_random_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(folder + "/backup", StopAfter(3))
        except Stop:
            weight = train(folder + "/backup")
    return f"best weight {weight:.4g}, of -1.1", bool(np.isclose(weight, -1.1))


def added_by_example(kit: Any) -> Seen:
    """38: `add_loss` with a value for each example"""

    class Penalty(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(x[:, 0] ** 2)
            return x

    moved = []
    for scope in (kit.strategy.scope(), kit.one_device()):
        with scope:
            inner = line(SGD(0.01))
            model = keras.Sequential([inner, Penalty()])
            model.compile(SGD(0.01), "mse")
        x = column(1, 1, 1, 1, 2)
        model.fit(x, 0 * x, batch_size=4, shuffle=False, verbose=0)
        moved.append(1.0 - float(model.get_weights()[0].item()))
    several, one = moved
    text = f"update {several:.4g}; {one:.4g} on one device"
    return text, bool(np.isclose(several, one, rtol=1e-4))


ALL = (
    clipping,
    overflow,
    dropout,
    scalar_loss,
    own_train_step,
    partial_batch,
    schedule,
    resume_within_an_epoch,
    backup_of_another_training,
    exclusion_by_name,
    warm_up,
    growing_batch,
    described_too_late,
    unknown_cardinality,
    configuration,
    own_test_step,
    calls_of_several_steps,
    py_dataset_workers,
    state_that_is_no_sum,
    weights_assigned_by_a_step,
    cluster_left_out,
    best_weights_after_a_restart,
    added_by_example,
)


# On two workers: each returns its observations, which `judged` combines.


def unseeded_shuffle(kit: Any, folder: str) -> list[Any]:
    """5: unseeded shuffle under DATA sharding"""
    dataset = tf.data.Dataset.range(16).shuffle(16).batch(4)
    return kit.batches(sharded(dataset, "DATA"))


def unequal_shards(kit: Any, folder: str) -> list[Any]:
    """7: unequal FILE shards"""
    # The files have 3 and 9 lines.
    dataset = tf.data.TextLineDataset([f"{folder}/{name}.txt" for name in "ab"])
    return kit.batches(sharded(dataset.map(tf.strings.to_number).batch(4), "FILE"))


def unsharded(kit: Any, folder: str) -> list[Any]:
    """8: sharding OFF on unsharded data"""
    return kit.batches(sharded(tf.data.Dataset.range(16).batch(4), "OFF"))


def loop_outside_of_scope(kit: Any, folder: str) -> list[Any]:
    """31: a GradientTape loop with a model that was made outside of the scope"""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1), "float32")])
    optimizer = SGD(0.1)
    # This worker's own batch.
    x = column(1.0 + kit.strategy.cluster_resolver.task_id)
    try:
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
    except ValueError as error:
        return [str(error)]
    return [float(model.get_weights()[0].item())]


def weights_on_the_chief(kit: Any, folder: str) -> list[Any]:
    """26: weights loaded on the chief only"""
    with kit.strategy.scope():
        model = line(SGD(0.1))
    if kit.strategy.cluster_resolver.task_id == 0:
        model.set_weights([np.full((1, 1), 2.0, "float32")])
    try:
        kit.train(model, column(1, 1, 1, 1), column(0, 0, 0, 0))
    except MismatchError as error:
        return [str(error)]
    return [float(model.get_weights()[0].item())]


def saves_on_one_path(kit: Any, folder: str) -> list[Any]:
    """23: every worker calls `model.save` on one path"""
    with kit.strategy.scope():
        model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)])
    damaged = []
    for number in range(12):
        path = pathlib.Path(folder) / f"{number}.keras"
        # At the same time, as after `fit`.
        kit.strategy.reduce("SUM", tf.constant(1.0), axis=None)
        model.save(path)
        kit.strategy.reduce("SUM", tf.constant(1.0), axis=None)
        try:
            with zipfile.ZipFile(path) as file:
                damaged.append(file.testzip() is not None)
        except zipfile.BadZipFile:
            damaged.append(True)
    return damaged


def classes_from_a_set(kit: Any, folder: str) -> list[Any]:
    """34: classes numbered in the order of a Python set"""
    names = [f"class {i}" for i in range(8)]
    # As a worker that was started in another way than by `fastnet run`.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
    command = [sys.executable, "-c", f"print(*map({names}.index, set({names})))"]
    order = subprocess.check_output(command, env=environment, text=True)
    labels = column(*map(int, order.split()))
    with kit.strategy.scope():
        model = line(SGD(0.1))
    try:
        kit.train(model, np.ones_like(labels), labels)
    except ShardingError as error:
        return [str(error)]
    return labels.ravel().tolist()


def no_fixed_order(kit: Any, folder: str) -> list[Any]:
    """35: `interleave(..., deterministic=False)` under DATA sharding"""
    # Each worker waits for another source.
    slow = kit.strategy.cluster_resolver.task_id

    def waited(part: Any, number: Any) -> Any:
        time.sleep(0.05 * (part == slow))
        return number

    def read(part: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(4 * part, 4 * part + 4).map(
            lambda n: tf.ensure_shape(
                tf.numpy_function(waited, [part, n], tf.int64), []
            )
        )

    dataset = tf.data.Dataset.range(4).interleave(
        read, cycle_length=4, num_parallel_calls=4, deterministic=False
    )
    return kit.batches(sharded(dataset.batch(4), "DATA"))


def sharded(dataset: tf.data.Dataset, policy: str) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = getattr(
        tf.data.experimental.AutoShardPolicy, policy
    )
    return dataset.with_options(options)


def judged(name: str, by_worker: list[list[Any]]) -> Seen:
    """Returns what was observed on all workers, and whether it is right."""
    if name == "loop_outside_of_scope":
        if all("made outside" in str(found) for (found,) in by_worker):
            return "refused", True
        weights = [round(weight, 4) for (weight,) in by_worker]
        return f"weights {weights} on 2 workers", len(set(weights)) == 1
    if name == "weights_on_the_chief":
        if all("the same weights" in str(found) for (found,) in by_worker):
            return "refused", True
        weights = [round(weight, 4) for (weight,) in by_worker]
        return f"weights {weights} on 2 workers", len(set(weights)) == 1
    if name == "classes_from_a_set":
        if all("the same global batches" in str(found[0]) for found in by_worker):
            return "refused", True
        numberings = len(set(map(tuple, by_worker)))
        return f"{numberings} numberings of 8 classes on 2 workers", numberings == 1
    if name == "saves_on_one_path":
        bad = sum(map(any, zip(*by_worker, strict=True)))
        return f"{bad} of {len(by_worker[0])} files damaged", bad == 0
    ids = [i for worker in by_worker for own, _ in worker for i in own]
    times = {i: ids.count(i) for i in range(16)}
    if name in ("unseeded_shuffle", "no_fixed_order"):
        twice, never = ([i for i in times if times[i] == n] for n in (2, 0))
        return f"twice: {len(twice)}, never: {len(never)} of 16", not (twice or never)
    if name == "unequal_shards":
        empty = sum(not own and total < 1 for w in by_worker for own, total in w)
        return f"{empty} steps without an example, {len(ids)} of 12 seen", (
            empty == 0 and len(ids) == 12
        )
    counted = sum(total for _, total in by_worker[0])
    said = f"counted as {counted}" if counted > 0 else "counted by nobody"
    return f"16 examples seen {len(ids)} times, {said}", counted == len(ids)


ON_TWO_WORKERS = (
    unseeded_shuffle,
    unequal_shards,
    unsharded,
    saves_on_one_path,
    loop_outside_of_scope,
    weights_on_the_chief,
    classes_from_a_set,
    no_fixed_order,
)


def without_strategy(exit_code: int, folder: pathlib.Path) -> Seen:
    """25: a script without a strategy, started as two workers

    Args:
        exit_code: Of the launch of `LONE_SCRIPT`.
        folder: Where each worker wrote its weight.
    """
    models = {path.read_text() for path in folder.glob("rank-*")}
    if models:
        return f"{len(models)} models of 2 workers, exit code {exit_code}", False
    return "refused", exit_code != 0


LONE_SCRIPT = str(
    pathlib.Path(__file__).parents[1] / "launcher_scripts/train_without_strategy.py"
)


def write_shards(folder: pathlib.Path) -> None:
    """Writes the files of `unequal_shards`."""
    for name, numbers in (("a", range(3)), ("b", range(3, 12))):
        lines = "".join(f"{number}\n" for number in numbers)
        (folder / f"{name}.txt").write_text(lines)
