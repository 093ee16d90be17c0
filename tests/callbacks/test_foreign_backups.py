"""Backups of other trainings, damaged files and unusable disks.

Each case changes one thing between an interrupted training and the next one, which is
refused before its first step, with the reason, or resumes at the same position.
"""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS, LargeBatchOptimizer, TorusStrategy
from keras_fastnet._keras.keras_api import IS_KERAS_2, keras
from keras_fastnet.callbacks import (
    BackupAndRestore,
    BatchGrowth,
    LearningRateWarmup,
)
from keras_fastnet.callbacks.backups import backup_file, folder_lock
from keras_fastnet.callbacks.backups.backup_writer import wait_for_writers
from tests.callbacks.damage import backups_in, flip_a_bit, halve, pieces
from tests.stopping import Stop, StopAfter

WITHIN, BOUNDARY = (1, 2), (1, 0)
LOCK = folder_lock.FILE_NAME


class StopAtOnce(keras.callbacks.Callback):
    """Ends a training before its first step, when it has resumed."""

    def on_epoch_begin(self, epoch, logs=None):
        raise Stop


def arrays(count=64, factor=1.0):
    x = np.random.default_rng(0).normal(size=(count, 3)).astype("float32") * factor
    return x, x[:, :1] + 1.0


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


def mixed():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        return network()
    finally:
        keras.mixed_precision.set_global_policy("float32")


def sgd(rate=0.1, steps=1, **settings):
    settings = {"momentum": 0.9, **settings}
    return LargeBatchOptimizer(keras.optimizers.SGD(rate, **settings), steps)


def fit(
    folder,
    *,
    seed=5,
    model=network,
    optimizer=sgd,
    loss="mse",
    data=arrays,
    callbacks=(),
    end=None,
    may_differ=(),
    compiled=None,
    save_freq=1,
    scope=contextlib.nullcontext,
    **options,
):
    """Trains; by default until it has resumed, or is refused."""
    keras.utils.set_random_seed(seed or 5)
    tf.random.set_seed(seed)
    given = data()
    if isinstance(given, tuple):
        x, y = given
        options = {"batch_size": 16, "y": y, **options}
    else:
        x = given
        options["shuffle"] = False
    with scope():
        made = model()
        made.compile(optimizer(), loss, **(compiled or {}))
    backup = BackupAndRestore(folder, save_freq, may_differ=may_differ)
    options = {"epochs": 4, "verbose": 0, **options}
    end = StopAtOnce() if end is None else end
    with pytest.raises(Stop):
        made.fit(x, callbacks=[*callbacks, backup, end], **options)
    wait_for_writers()
    return made


def train_until(folder, position, **settings):
    epoch, batch = position
    fit(folder, end=StopAfter(4 * epoch + batch + 1), **settings)
    (path,) = backups_in(folder)[:1]
    assert path.name == backup_file.file_name(epoch, batch + 1)
    # The one before that which was written as the last.
    path.unlink()
    (path,) = backups_in(folder)
    assert path.name == backup_file.file_name(*position)
    (folder / LOCK).unlink()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Returns a copy of the folder that an interrupted training left."""
    kept = {}

    def copy(folder, position=WITHIN, name="", **settings):
        if (position, name) not in kept:
            kept[position, name] = tmp_path_factory.mktemp("kept")
            train_until(kept[position, name], position, **settings)
        shutil.copytree(kept[position, name], folder, dirs_exist_ok=True)

    return copy


def schedule(**settings):
    return keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)


def warmup(peak=0.2):
    return LearningRateWarmup(peak, 2)


def stopping(monitor="loss", **settings):
    return keras.callbacks.EarlyStopping(monitor, patience=9, **settings)


# Keras 2 shuffles arrays before anybody can look at them.
SAMPLE = "first batch" if IS_KERAS_2 else "first examples"

# What the next training changes, and the part that the error names.
REFUSED = {
    "units": ({"model": lambda: network(units=5)}, "model"),
    "activation": ({"model": lambda: network(activation="tanh")}, "model"),
    "dropout": ({"model": lambda: network(dropout=0.1)}, "model"),
    "a layer more": (
        {"model": lambda: network(more=[keras.layers.Dense(2)])},
        "model",
    ),
    "regularizer": ({"model": lambda: network(kernel_regularizer="l2")}, "model"),
    "frozen layer": ({"model": frozen}, "model"),
    "precision": ({"model": mixed}, "dtype policy|model"),
    "optimizer class": (
        {"optimizer": lambda: LargeBatchOptimizer(LARS(0.1, momentum=0.9))},
        "optimizer",
    ),
    "momentum": ({"optimizer": lambda: sgd(momentum=0.8)}, "optimizer"),
    "nesterov": ({"optimizer": lambda: sgd(nesterov=True)}, "optimizer"),
    "clipping": ({"optimizer": lambda: sgd(clipnorm=1.0)}, "optimizer"),
    "learning rate": ({"optimizer": lambda: sgd(0.05)}, "learning rate"),
    "schedule": ({"optimizer": lambda: sgd(schedule())}, "optimizer|learning rate"),
    "accumulation": ({"optimizer": lambda: sgd(steps=2)}, "accumulation steps"),
    "loss": ({"loss": "mae"}, "loss"),
    "setting of the loss": ({"loss": lambda: keras.losses.Huber(2.0)}, "loss"),
    "weight of the loss": ({"compiled": {"loss_weights": [2.0]}}, "loss weights"),
    "seed": ({"seed": 6}, "random seed"),
    "no seed": ({"seed": None, "save_freq": "epoch"}, "random seed"),
    "smaller batch": ({"batch_size": 8}, "batch size"),
    "larger batch": ({"batch_size": 32}, "batch size"),
    "one larger than the data": ({"batch_size": 100}, "batch size"),
    "fewer examples": ({"data": lambda: arrays(63)}, "examples in an epoch"),
    "more examples": ({"data": lambda: arrays(80)}, "batches in an epoch"),
    "other examples": ({"data": lambda: arrays(factor=2.0)}, SAMPLE),
    "other targets": ({"data": lambda: (arrays()[0], -arrays()[1])}, SAMPLE),
    "integers": (
        {"data": lambda: (arrays()[0].astype("int32"), arrays()[1])},
        "elements",
    ),
    "sample weights": ({"sample_weight": np.full(64, 2.0, "float32")}, "elements"),
    "a dataset in another order": ({"data": lambda: dataset(False)}, "first batch"),
    # It shuffles in another order.
    "a strategy": ({"scope": lambda: TorusStrategy().scope()}, "first batch"),
    "shorter epochs": ({"steps_per_epoch": 3}, "batches in an epoch"),
    "warm-up": ({"callbacks": [warmup()]}, "callbacks"),
    "growth": ({"callbacks": [BatchGrowth({0: 16, 1: 32})]}, "callbacks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_backup_of_another_training_raises(tmp_path, interrupted, case):
    changed, part = REFUSED[case]
    changed = dict(changed)
    if case == "setting of the loss":
        changed["loss"] = changed["loss"]()
    interrupted(tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(ValueError, match=rf"these parts differ: .*\b({part}):"):
        fit(tmp_path, **changed)
    assert sorted(os.listdir(tmp_path)) == before


def renamed():
    for _ in range(3):
        keras.layers.Dense(1)
    return network(name="hidden")


# What the next training changes, where its backup is, and what the chief prints.
ACCEPTED = {
    "nothing": ({}, WITHIN, ""),
    "nothing, between epochs": ({}, BOUNDARY, ""),
    "more epochs": ({"epochs": 9}, WITHIN, ""),
    "verbose": ({"verbose": 2}, WITHIN, ""),
    "names of layers": ({"model": renamed}, WITHIN, ""),
    "a metric": (
        {"compiled": {"metrics": ["mae"]}},
        WITHIN,
        "the metrics have changed and begin with the next batch",
    ),
    "a metric, between epochs": (
        {"compiled": {"metrics": ["mae"]}},
        BOUNDARY,
        "the metrics have changed",
    ),
    "compiled another way": ({"compiled": {"run_eagerly": True}}, WITHIN, ""),
    "validation": ({"validation_data": arrays(16)}, WITHIN, ""),
    "a callback that watches": (
        {"callbacks": [keras.callbacks.LambdaCallback()]},
        WITHIN,
        "",
    ),
    "a callback with a state": (
        {"callbacks": [stopping()]},
        WITHIN,
        "the backup has no state of EarlyStopping",
    ),
    "another rate, on request": (
        {"optimizer": lambda: sgd(0.05), "may_differ": ["learning rate"]},
        WITHIN,
        "",
    ),
    "a strategy, between epochs": (
        {"scope": lambda: TorusStrategy().scope()},
        BOUNDARY,
        "the first batch differs",
    ),
    "a dataset in another order, between epochs": (
        {"data": lambda: dataset(False)},
        BOUNDARY,
        "the first batch differs from that of the backup's training",
    ),
    "save_freq": ({"save_freq": "epoch"}, WITHIN, ""),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_training_that_may_differ_resumes(tmp_path, interrupted, capsys, case):
    changed, position, note = ACCEPTED[case]
    interrupted(tmp_path, position)
    model = fit(tmp_path, **changed)
    epoch, batch = position
    printed = capsys.readouterr().out
    assert f"resuming at epoch {epoch + 1}, batch {batch + 1}, after" in printed
    assert note in printed
    assert model.optimizer.iterations.numpy() == 4 * epoch + batch
    rate = 0.05 if case == "another rate, on request" else 0.1
    np.testing.assert_allclose(model.optimizer.inner_optimizer.learning_rate, rate)


def test_order_of_data_without_a_seed_is_not_compared(tmp_path, capsys):
    settings = {"data": lambda: dataset(True), "seed": None, "save_freq": "epoch"}
    fit(tmp_path, end=StopAfter(5), **settings)
    fit(tmp_path, **settings)
    printed = capsys.readouterr().out
    assert "resuming at epoch 2, batch 1" in printed
    assert "differs" not in printed


def by_length(reverse):
    """Batches whose sizes and order depend on the run, as of a bucketing dataset."""

    def batches():
        for size in (24, 8, 16, 16) if reverse else (8, 24, 16, 16):
            yield tuple(part[:size] for part in arrays())

    kinds = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    return tf.data.Dataset.from_generator(batches, output_signature=kinds)


@pytest.mark.filterwarnings("ignore:.*input ran out of data")
def test_batches_of_many_sizes_resume_between_epochs(tmp_path, capsys):
    settings = {"seed": None, "save_freq": "epoch"}
    fit(tmp_path, data=lambda: by_length(False), end=StopAfter(5), **settings)
    fit(tmp_path, data=lambda: by_length(True), **settings)
    assert "resuming at epoch 2, batch 1" in capsys.readouterr().out


def test_rate_set_by_a_callback_is_restored(tmp_path, capsys):
    plateau = keras.callbacks.ReduceLROnPlateau
    settings = {"callbacks": [plateau("loss", 0.5, patience=1, min_delta=1e9)]}
    fit(tmp_path, epochs=9, end=StopAfter(13), **settings)
    settings = {"callbacks": [plateau("loss", 0.5, patience=1, min_delta=1e9)]}
    model = fit(tmp_path, epochs=9, **settings)
    assert "resuming at epoch 4, batch 2" in capsys.readouterr().out
    rate = model.optimizer.inner_optimizer.learning_rate
    np.testing.assert_allclose(rate, 0.025)


def test_state_goes_to_the_callback_of_its_class_and_monitor(tmp_path, capsys):
    def callbacks():
        return (
            stopping("loss"),
            stopping("mae"),
            keras.callbacks.ModelCheckpoint(
                str(tmp_path / "best.keras"), "loss", save_best_only=True
            ),
        )

    settings = {"compiled": {"metrics": ["mae"]}}
    first = callbacks()
    folder = tmp_path / "backups"
    fit(folder, callbacks=first, end=StopAfter(6), **settings)
    of_loss, of_mae, saving = callbacks()
    added = keras.callbacks.ReduceLROnPlateau("loss")

    class Look(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seen.extend([of_loss.best, of_mae.best, saving.best])

    seen = []
    # In another order, one added, and one at the end that looks before the stop.
    fit(
        folder, callbacks=(saving, of_mae, added, of_loss), end=StopAfter(1), **settings
    )
    printed = capsys.readouterr().out
    assert "no state of ReduceLROnPlateau(monitor='loss'), which starts" in printed
    bests = [callback.best for callback in first]
    assert len(set(map(float, bests))) == 2
    for mine, theirs in zip((of_loss, of_mae, saving), bests, strict=True):
        np.testing.assert_allclose(mine.best, theirs)
    fit(folder, callbacks=(of_mae, added), **settings)
    printed = capsys.readouterr().out
    for name in ("EarlyStopping(monitor='loss')", "ModelCheckpoint(monitor='loss')"):
        assert f"the state of {name}, which this training lacks" in printed


def rewritten(path, change):
    """Changes what a backup states about itself."""
    content, about = backup_file.unpack(path.read_bytes())
    pack(path, content, change(about))


def pack(path, arrays, about):
    path.write_bytes(b"".join(pieces(arrays, about)))


def second_format(path):
    """Rewrites a backup as NumPy's `.npz` after a checksum."""
    arrays, about = backup_file.unpack(path.read_bytes())
    kinds = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    text = {"about": {**about, "format": 2}, "arrays": kinds}
    entries = {
        name: np.frombuffer(array.tobytes(), np.uint8) for name, array in arrays.items()
    }
    entries["about"] = np.frombuffer(json.dumps(text).encode(), np.uint8)
    payload = io.BytesIO()
    np.savez(payload, **entries)
    path.write_bytes(signed(payload.getvalue()))


def first_format(path):
    """Rewrites a backup without the training that it belongs to."""

    def change(about):
        kept = {name: about[name] for name in ("epoch", "batch")}
        return {**kept, "callbacks": list(about["callbacks"].values())}

    rewritten(path, change)
    second_format(path)


def of_older_keras(path):
    def change(about):
        parts = dict(about["parts"])
        parts["versions"] = {**parts["versions"], "Keras": "3.9.0"}
        # A setting that only one version has.
        parts["optimizer"]["config"]["of_older_keras"] = 1
        return {**about, "parts": parts}

    rewritten(path, change)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (first_format, "does not state which training it belongs to"),
        (second_format, ""),
        (of_older_keras, "was written with Keras 3.9.0"),
    ],
)
def test_backup_of_another_version_resumes(tmp_path, interrupted, capsys, change, note):
    interrupted(tmp_path)
    change(*backups_in(tmp_path))
    fit(tmp_path)
    printed = capsys.readouterr().out
    assert note in printed
    assert "resuming at epoch 2, batch 3, after 6 updates" in printed


def signed(payload):
    return hashlib.sha256(payload).digest() + payload


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def replace_by_dangling_link(path):
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = {
    "half": (halve, "its checksum is wrong"),
    "a bit": (flip_a_bit, "its checksum is wrong"),
    "empty": (lambda path: path.write_bytes(b""), "its checksum is wrong"),
    "text": (lambda path: path.write_text("hello"), "its checksum is wrong"),
    "signed text": (lambda path: path.write_bytes(signed(b"hello")), "not a backup"),
    "of something else": (
        lambda path: pack(path, {}, {"a": 1}),
        "not a backup",
    ),
    "without a position": (
        lambda path: rewritten(path, lambda about: {**about, "batch": -1}),
        "states no position",
    ),
    "a later format": (
        lambda path: rewritten(path, lambda about: {**about, "format": 99}),
        "format 99, of a later version",
    ),
    "a folder": (replace_by_folder, "not a regular file|Is a directory"),
    "a pipe": (replace_by_pipe, "not a regular file"),
    "a dangling link": (replace_by_dangling_link, "No such file"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_backup_is_skipped_or_raises(tmp_path, interrupted, capsys, case):
    damage, words = DAMAGES[case]
    interrupted(tmp_path)
    (intact,) = backups_in(tmp_path)
    newest = tmp_path / backup_file.file_name(7, 0)
    shutil.copy(intact, newest)
    damage(newest)
    fit(tmp_path)
    printed = capsys.readouterr().out
    assert f"fastnet: skipping {newest}: " in printed
    assert "resuming at epoch 2, batch 3" in printed
    intact.unlink()
    with pytest.raises(ValueError, match=rf"only damaged ones in .*({words})"):
        fit(tmp_path)


# Folders and files that make a `backup_dir` unusable, for root too.
def a_file(folder):
    path = folder / "file"
    path.write_text("mine")
    return path


def within_a_file(folder):
    return a_file(folder) / "backups"


def lock_is_a_link(folder):
    (folder / LOCK).symlink_to(a_file(folder))
    return folder


def lock_is_a_folder(folder):
    (folder / LOCK).mkdir()
    return folder


def lock_is_a_pipe(folder):
    os.mkfifo(folder / LOCK)
    return folder


UNUSABLE = {
    "a file": a_file,
    "within a file": within_a_file,
    "no files may be made": lambda folder: "/sys/fastnet",
    "a folder that takes no files": lambda folder: "/proc/self/task",
    "a name that is too long": lambda folder: folder / ("x" * 300),
    "a dangling link": lambda folder: link_to_nowhere(folder),
    "a link as lock": lock_is_a_link,
    "a folder as lock": lock_is_a_folder,
    "a pipe as lock": lock_is_a_pipe,
}


def link_to_nowhere(folder):
    (folder / "link").symlink_to(folder / "nowhere" / "further")
    return folder / "link"


@pytest.mark.parametrize("case", UNUSABLE)
def test_unusable_folder_raises_before_the_first_step(tmp_path, case):
    path = UNUSABLE[case](tmp_path)
    with pytest.raises(ValueError, match="`backup_dir` must be a folder into which"):
        fit(path)
    if (tmp_path / "file").exists():
        assert (tmp_path / "file").read_text() == "mine"


def test_empty_name_of_the_folder_raises():
    with pytest.raises(ValueError, match="must name a folder"):
        BackupAndRestore("")


def test_unknown_part_raises(tmp_path):
    for names in (["rate"], "learning rate"):
        with pytest.raises(ValueError, match=r"The names are: .*, learning rate"):
            BackupAndRestore(tmp_path, may_differ=names)


@contextlib.contextmanager
def files_up_to(size):
    """The system refuses to write more into a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_without_room_for_a_backup_raises(tmp_path):
    with (
        files_up_to(4096),
        pytest.raises(ValueError, match=r"backups of [\d,]+ bytes .*File too large"),
    ):
        fit(tmp_path / "backups")
    assert not (tmp_path / "backups").exists()


class FullBetween(keras.callbacks.Callback):
    """The disk is full between two updates."""

    def __init__(self, first, last):
        super().__init__()
        self.between = range(first, last)
        self.limit = contextlib.ExitStack()
        self.updates = 0

    def on_train_batch_begin(self, batch, logs=None):
        wait_for_writers()
        self.limit.close()
        if self.updates in self.between:
            self.limit.enter_context(files_up_to(1024))
        self.updates += 1


def test_training_continues_while_the_disk_is_full(tmp_path, capsys):
    full = FullBetween(2, 6)
    with full.limit:
        fit(tmp_path, callbacks=[full], end=StopAfter(6))
    assert not list(tmp_path.glob("*.unfinished"))
    printed = capsys.readouterr().out
    assert printed.count("WARNING: no backup could be written") == 2
    assert "Training continues" in printed
    # Two updates were backed up before.
    model = fit(tmp_path)
    assert model.optimizer.iterations.numpy() == 2
    full = FullBetween(1, 2)
    with full.limit:
        fit(tmp_path, callbacks=[full], end=StopAfter(4))
    assert "backups are written to" in capsys.readouterr().out
    assert fit(tmp_path).optimizer.iterations.numpy() == 6


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root may mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_old_backups_make_room_on_a_full_disk(tmp_path, small_disk, capsys):
    folder = small_disk / "backups"
    fit(folder, end=StopAfter(3))
    assert len(backups_in(folder)) == 2
    # A third one does not fit.
    (small_disk / "taken").write_bytes(b"x" * (room(small_disk) - 4096))
    fit(folder, end=StopAfter(2))
    assert "WARNING" not in capsys.readouterr().out
    assert backups_in(folder)[0].name == backup_file.file_name(1, 1)
    backups_in(folder)[1].unlink()
    (small_disk / "more").write_bytes(b"x" * room(small_disk))
    with pytest.raises(ValueError, match="No space left on device"):
        fit(folder)


def room(disk):
    return shutil.disk_usage(disk).free


def test_unfinished_file_does_not_follow_a_link(tmp_path):
    mine = a_file(tmp_path)
    folder = tmp_path / "backups"
    folder.mkdir()
    for name in ("epoch-000000-batch-000000001", "epoch-000001-batch-000000000"):
        (folder / f"{name}.unfinished").symlink_to(mine)
    fit(folder, end=StopAfter(5))
    assert mine.read_text() == "mine"
    assert not list(folder.glob("*.unfinished"))


# Holds the lock of a folder until its input ends.
HOLD = """
import pathlib, sys
from keras_fastnet.callbacks.backups.folder_lock import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
lock.take(0, 2)
print("held", flush=True)
sys.stdin.read()
"""


def held(folder):
    """Returns a process that uses a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def holder(tmp_path):
    process = held(tmp_path)
    yield process
    process.kill()
    process.communicate()


def test_folder_that_another_training_uses_raises(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(folder_lock, "ENDING_SECONDS", 1.0)
    before = (tmp_path / LOCK).read_text()
    names = rf"is used by process {holder.pid} on host '{socket.gethostname()}' "
    with pytest.raises(ValueError, match=names + r"\(rank 0 of 2 workers\) since 20.*"):
        fit(tmp_path)
    assert (tmp_path / LOCK).read_text() == before
    holder.communicate("")
    assert not (tmp_path / LOCK).exists()
    fit(tmp_path)


def test_folder_of_a_process_that_ends_is_taken_over(tmp_path, holder, capsys):
    """As of a killed worker, which the kernel ends after its last write."""
    timer = threading.Timer(1.0, holder.kill)
    timer.start()
    fit(tmp_path)
    timer.join()
    words = f"waiting up to 10 s for the end of process {holder.pid} on host "
    assert words in capsys.readouterr().out
    owner = json.loads((tmp_path / LOCK).read_text())
    assert owner["process"] == os.getpid()


def test_folder_of_a_dead_process_is_taken_over(tmp_path, holder):
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK).exists()
    fit(tmp_path)
    owner = json.loads((tmp_path / LOCK).read_text())
    assert owner["process"] == os.getpid()


def of_another_host(folder, age):
    path = folder / LOCK
    owner = {"host": "other", "machine": "its boot", "process": 7, "rank": 0}
    path.write_text(json.dumps({**owner, "workers": 3, "since": "yesterday"}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_old_lock_of_another_host_is_taken_over(tmp_path, capsys):
    of_another_host(tmp_path, age=folder_lock.STALE_SECONDS + 1)
    fit(tmp_path)
    assert "waiting" not in capsys.readouterr().out


def test_lock_of_another_host_is_taken_over_when_it_is_old(tmp_path):
    path = of_another_host(tmp_path, age=folder_lock.STALE_SECONDS - 3)
    fit(tmp_path)
    assert json.loads(path.read_text())["process"] == os.getpid()


def test_renewed_lock_of_another_host_raises(tmp_path):
    path = of_another_host(tmp_path, age=1)
    ended = threading.Event()

    def renew():
        while not ended.wait(0.2):
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(ValueError, match="is used by process 7 on host 'other'"):
            fit(tmp_path)
    finally:
        ended.set()
        thread.join()
    assert json.loads(path.read_text())["process"] == 7


def test_unreadable_lock_is_taken_over(tmp_path):
    (tmp_path / LOCK).write_bytes(b"\xff not a lock")
    fit(tmp_path)


def test_training_that_lost_its_folder_writes_no_backup(tmp_path, capsys, monkeypatch):
    """As after a suspension: another host has taken over."""
    monkeypatch.setattr(folder_lock, "ENDING_SECONDS", 1.0)

    class TakeOver(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            (tmp_path / LOCK).unlink()
            holders.append(held(tmp_path))

    holders = []
    try:
        fit(tmp_path, callbacks=[TakeOver()], end=StopAfter(2))
    finally:
        for holder in holders:
            holder.communicate("")
    assert "WARNING: no backup could be written" in capsys.readouterr().out
    assert not backups_in(tmp_path)


def test_removed_folder_is_made_again(tmp_path, capsys):
    folder = tmp_path / "backups"

    def remove(batch, logs):
        wait_for_writers()
        shutil.rmtree(folder)

    remove = keras.callbacks.LambdaCallback(on_train_batch_begin=remove)
    fit(folder, callbacks=[remove], end=StopAfter(2))
    assert "WARNING" not in capsys.readouterr().out
    assert (folder / LOCK).exists()
    assert len(backups_in(folder)) == 1


def test_no_file_stays_after_training(tmp_path):
    folder = tmp_path / "new" / "backups"

    class End(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            assert (folder / LOCK).exists()
            raise Stop

    backup = BackupAndRestore(folder)
    model = network()
    model.compile(sgd(), "mse")
    x, y = arrays()
    with pytest.raises(Stop):
        # Before that of the backups.
        model.fit(x, y, verbose=0, callbacks=[End(), backup])
    model.fit(x, y, verbose=0, callbacks=[backup])
    assert not folder.exists()
    backup = BackupAndRestore(folder, delete_checkpoint=False)
    model.fit(x, y, verbose=0, callbacks=[backup])
    assert os.listdir(folder) == [backup_file.file_name(1, 0)]
