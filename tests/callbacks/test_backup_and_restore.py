"""An interrupted training ends like an uninterrupted one."""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest
import tensorflow as tf

from keras_fastnet import LARS, LargeBatchOptimizer, TorusStrategy
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.batches.elements import DatasetElements
from keras_fastnet.batches.epoch_data import EpochData
from keras_fastnet.callbacks import BackupAndRestore
from keras_fastnet.callbacks.backups import backup_file, local_files
from keras_fastnet.callbacks.backups.backup_writer import wait_for_writers
from tests.callbacks.damage import backups_in, flip_a_bit, halve, pieces
from tests.stopping import Stop, StopAfter


class Trainings:
    """Runs trainings in `tests.killed_training`."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.killed_training"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, folder, rank=None, step=None, **settings):
        """Returns the workers' exit statuses."""
        command = {"folder": str(folder), "rank": rank, "step": step, **settings}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def trainings():
    trainings = Trainings()
    yield trainings
    trainings.stop()


def results(folder, workers):
    loaded = []
    for rank in range(workers):
        with np.load(folder / f"rank{rank}.npz") as file:
            loaded.append({name: file[name] for name in file.files})
    return loaded


def assert_same(mine, theirs, exactly):
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if exactly and name != "logs":
                np.testing.assert_array_equal(one[name], other[name])
            else:
                # Restored metrics are divided among the replicas.
                np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)


# 30 steps with 2 x 10 + 4 updates of growing batches. A count that 16 does not divide
# gives smaller last batches.
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "count", "workers", "kills", "most_steps"),
    [
        pytest.param("arrays", 160, 2, 20, 4, marks=pytest.mark.slow),
        ("arrays", 160, 2, 3, 4),
        ("own", 160, 2, 2, 12),
        ("dataset", 160, 1, 2, 12),
        pytest.param("dataset", 150, 2, 2, 12, marks=pytest.mark.slow),
        ("pydataset", 160, 1, 3, 8),
        ("endless", 160, 1, 3, 8),
        ("unknown", 160, 1, 3, 8),
    ],
)
def test_killed_at_random(trainings, tmp_path, kind, count, workers, kills, most_steps):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = {"kind": kind, "count": count, "workers": workers}
    for folder in (whole, killed):
        folder.mkdir()
    assert trainings.run(whole, **settings) == [0] * workers
    generator = random.Random(kills)
    for _ in range(kills):
        rank, step = generator.randrange(workers), generator.randrange(most_steps)
        statuses = trainings.run(killed, rank, step, **settings)
        assert statuses[rank] == -signal.SIGKILL
    assert trainings.run(killed, **settings) == [0] * workers
    assert "resuming at" in (killed / "rank0.log").read_text()
    in_full_batches = count % 16 == 0
    assert_same(results(killed, workers), results(whole, workers), in_full_batches)
    assert not (killed / "backups").exists()


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("workers", "rank", "step"),
    [
        pytest.param(2, 1, 5, marks=pytest.mark.smoke),
        pytest.param(2, 0, 9, marks=pytest.mark.slow),
        (1, 0, 13),
    ],
)
def test_sigterm_to_one_worker(trainings, tmp_path, workers, rank, step):
    """All workers leave after the same update, with a backup of it."""
    whole, told = tmp_path / "whole", tmp_path / "told"
    settings = {
        "kind": "arrays",
        "count": 160,
        "workers": workers,
        "save_freq": "epoch",
    }
    for folder in (whole, told):
        folder.mkdir()
    assert trainings.run(whole, **settings) == [0] * workers
    statuses = trainings.run(told, rank, step, signal=signal.SIGTERM, **settings)
    assert statuses == [128 + signal.SIGTERM] * workers
    assert "fastnet: SIGTERM: run the same command to resume" in (
        (told / "rank0.log").read_text()
    )
    assert not (told / "rank0.npz").exists()
    assert trainings.run(told, **settings) == [0] * workers
    assert "resuming at" in (told / "rank0.log").read_text()
    assert_same(results(told, workers), results(whole, workers), exactly=True)


def test_sigterm_without_a_seed_keeps_the_backup_of_the_epoch(tmp_path):
    model, data = model_and_data()
    tf.random.set_seed(None)
    tell = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: (
            model.optimizer.iterations == 6 and os.kill(os.getpid(), signal.SIGTERM)
        )
    )
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            model.fit(**data, epochs=3, callbacks=[tell, BackupAndRestore(tmp_path)])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    names = [path.name for path in backups_in(tmp_path)]
    assert names == [backup_file.file_name(1, 0)]


def test_sigterm_handler_is_restored_after_fit(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    model, data = model_and_data()
    model.fit(**data, callbacks=[BackupAndRestore(tmp_path)])
    assert signal.getsignal(signal.SIGTERM) is before


def test_second_sigterm_ends_the_process():
    program = """
import os, signal
from keras_fastnet.callbacks.termination import Termination
def fit():
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("not here")
Termination().listen()
fit()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == "still here\n"


def test_sigterm_after_an_interrupted_fit_reaches_the_previous_handler(tmp_path):
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(None))
    try:
        interrupted(tmp_path)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [None]


def model_and_data():
    keras.utils.set_random_seed(5)
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(LargeBatchOptimizer(LARS(0.1)), "mse")
    return model, {"x": x, "y": x[:, :1], "batch_size": 16, "verbose": 0}


class StopAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise Stop


def interrupted(folder):
    """Trains two epochs of three."""
    model, data = model_and_data()
    with pytest.raises(Stop):
        model.fit(**data, epochs=3, callbacks=[BackupAndRestore(folder), StopAt(2)])
    wait_for_writers()


@pytest.mark.parametrize("batches", [4, 7, 8])
def test_resuming_at_the_end_of_an_epoch(tmp_path, capsys, batches):
    """After the last update and before the epoch's end, no batch is left."""
    with TorusStrategy().scope():
        whole, data = model_and_data()
        whole.fit(**data, epochs=3)
        killed, data = model_and_data()
        backup = BackupAndRestore(tmp_path, save_freq=1)
        with pytest.raises(Stop):
            killed.fit(**data, epochs=3, callbacks=[backup, StopAfter(batches)])
        again, data = model_and_data()
        data["verbose"] = 2
        again.fit(**data, epochs=3, callbacks=[BackupAndRestore(tmp_path, 1)])
    assert "16 examples a step; 64 examples, 4 steps" in capsys.readouterr().out
    assert again.optimizer.iterations.numpy() == 12
    for mine, theirs in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_updates_made_after_the_backup_are_told(tmp_path, capsys):
    def fit(*callbacks):
        model, data = model_and_data()
        backup = BackupAndRestore(tmp_path, 3)
        with pytest.raises(Stop):
            model.fit(**data, epochs=3, callbacks=[backup, *callbacks])
        wait_for_writers()
        return capsys.readouterr().out

    words = "the interrupted training had made {} after this backup, in "
    # Backups after 3, 4 and 7 updates.
    assert "after this backup" not in fit(StopAfter(6))
    assert words.format("2 updates") in fit(StopAfter(1))
    assert words.format("1 update") in fit(StopAfter(4))
    newest = backups_in(tmp_path)[0]
    assert newest.name == backup_file.file_name(1, 3)
    halve(newest)
    assert words.format("4 updates") in fit(StopAfter(2))
    # The record is of backups that are there no more.
    kept = backups_in(tmp_path)[-1].rename(tmp_path / "kept")
    for path in backups_in(tmp_path):
        path.unlink()
    kept.rename(tmp_path / backup_file.file_name(0, 4))
    printed = fit(StopAfter(1))
    assert "resuming at" in printed and "after this backup" not in printed


def empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [halve, flip_a_bit, empty])
def test_damaged_backup_is_skipped(tmp_path, capsys, damage):
    interrupted(tmp_path)
    newest, _ = backups_in(tmp_path)
    assert newest.name == backup_file.file_name(2, 0)
    damage(newest)
    model, data = model_and_data()
    model.fit(**data, epochs=3, callbacks=[BackupAndRestore(tmp_path)])
    printed = capsys.readouterr().out
    assert f"skipping {newest}" in printed
    assert "resuming at epoch 2, batch 1, after 4 updates" in printed
    assert model.optimizer.iterations.numpy() == 12


def test_only_damaged_backups_raise(tmp_path):
    interrupted(tmp_path)
    for path in backups_in(tmp_path):
        halve(path)
    model, data = model_and_data()
    with pytest.raises(ValueError, match=r"only damaged ones in .*Remove them"):
        model.fit(**data, callbacks=[BackupAndRestore(tmp_path)])


def test_half_written_file_is_ignored(tmp_path, monkeypatch):
    def power_cut(source, target):
        raise Stop

    model, data = model_and_data()
    monkeypatch.setattr(os, "replace", power_cut)
    with pytest.raises(Stop):
        model.fit(**data, callbacks=[BackupAndRestore(tmp_path)])
    monkeypatch.undo()
    assert list(tmp_path.iterdir())
    assert not backups_in(tmp_path)
    model.fit(**data, callbacks=[BackupAndRestore(tmp_path)])
    assert not tmp_path.exists()


@pytest.mark.parametrize("in_memory", [False, True])
def test_written_backup_is_read_again(tmp_path, in_memory):
    """Also in a file system that may not write past its cache."""
    arrays = {
        "half": tf.constant([1.5, -0.0], tf.bfloat16).numpy(),
        "count": np.array(7, "int64"),
        "empty": np.zeros((0, 3), "float32"),
        "odd": np.array([np.nan, np.inf, 1e-40], "float32"),
        # More than one write, and no multiple of a block.
        "large": np.arange(20_000_001) % 251 < 17,
    }
    told = {"epoch": 1, "batch": 2, "callbacks": {}}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if in_memory else tmp_path) as base:
        path = pathlib.Path(base, "folder", backup_file.file_name(1, 2))
        files = local_files.LocalFiles(path.parent, shared=False)
        files.write(path.name, pieces(arrays, told))
        again, about = backup_file.unpack(path.read_bytes())
    assert about == told
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        assert again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes()


def test_every_changed_byte_is_found():
    arrays = {"one": np.ones(5, "float16"), "two": np.zeros((2, 2)), "none": np.ones(0)}
    told = {"epoch": 1, "batch": 2, "callbacks": {}}
    content = b"".join(pieces(arrays, told))
    backup_file.unpack(content)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        for damaged in (bytes(changed), content[:place]):
            with pytest.raises(ValueError, match="its checksum is wrong"):
                backup_file.unpack(damaged)
    with pytest.raises(ValueError, match="its checksum is wrong"):
        backup_file.unpack(content + b"\0")


@pytest.fixture
def disk(request, monkeypatch):
    """An event without which no backup gets onto the disk, or is even copied."""
    free = threading.Event()
    owner, name = getattr(request, "param", (os, "fsync"))
    original = getattr(owner, name)

    def when_free(*arguments):
        assert free.wait(60)
        original(*arguments)

    monkeypatch.setattr(owner, name, when_free)
    yield free
    free.set()
    wait_for_writers()


class FreeAfter(StopAfter):
    """Ends a training, and lets the disk write only then."""

    def __init__(self, batches, disk, folder):
        super().__init__(batches)
        self.disk = disk
        self.folder = folder

    def on_train_batch_end(self, batch, logs=None):
        try:
            super().on_train_batch_end(batch, logs)
        except Stop:
            assert not backups_in(self.folder)
            self.disk.set()
            raise


@pytest.mark.parametrize(
    "disk",
    [(os, "fsync"), (np, "copyto")],
    indirect=True,
    ids=["written late", "copied late"],
)
def test_backup_written_during_later_updates_holds_its_own(tmp_path, disk, capsys):
    whole, data = model_and_data()
    whole.fit(**data, epochs=2)
    killed, data = model_and_data()
    stop = FreeAfter(4, disk, tmp_path)
    # Until the lock is written.
    disk.set()
    begun = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: disk.clear())
    callbacks = [begun, stop, BackupAndRestore(tmp_path, save_freq=2)]
    with pytest.raises(Stop):
        killed.fit(**data, epochs=2, callbacks=callbacks)
    again, data = model_and_data()
    again.fit(**data, epochs=2, callbacks=[BackupAndRestore(tmp_path, 2)])
    assert "resuming at epoch 1, batch 3, after 2 updates" in capsys.readouterr().out
    for mine, theirs in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_backup_in_the_foreground_is_complete_at_once(tmp_path):
    model, data = model_and_data()
    backup = BackupAndRestore(tmp_path, 1, save_on_background=False)
    with pytest.raises(Stop):
        model.fit(**data, callbacks=[backup, StopAfter(1)])
    assert [path.name for path in backups_in(tmp_path)] == [backup_file.file_name(0, 1)]


@pytest.mark.parametrize("end", ["of training", "by SIGTERM"])
def test_end_waits_for_the_last_backup(tmp_path, disk, end):
    model, data = model_and_data()

    def act(batch, logs):
        if batch == (2 if end == "by SIGTERM" else 3):
            disk.clear()
            threading.Timer(0.5, disk.set).start()
            if end == "by SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)

    disk.set()
    backup = BackupAndRestore(tmp_path, delete_checkpoint=False)
    act = keras.callbacks.LambdaCallback(on_train_batch_end=act)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.suppress(SystemExit):
            model.fit(**data, callbacks=[act, backup])
    finally:
        signal.signal(signal.SIGTERM, before)
    position = (0, 3) if end == "by SIGTERM" else (1, 0)
    assert os.listdir(tmp_path) == [backup_file.file_name(*position)]


def test_exception_leaves_the_backup_that_is_being_written(tmp_path):
    program = """
import os, pathlib, sys, threading
import numpy as np
from keras_fastnet.callbacks.backups import backup_folder, backup_writer
raised, fsync = threading.Event(), os.fsync
os.fsync = lambda file: (raised.wait(), fsync(file))
threading.Timer(0.5, raised.set).start()
folder = backup_folder.BackupFolder(pathlib.Path(sys.argv[1]), shared=False)
about = {"epoch": 1, "batch": 0, "callbacks": {}}
writer = backup_writer.BackupWriter(folder, 2, print)
writer.start({"weight": np.ones(9)}, about, 3)
raise RuntimeError("out of data")
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: out of data\n")
    (path,) = backups_in(tmp_path)
    arrays, _ = backup_file.unpack(path.read_bytes())
    assert arrays["weight"].tolist() == [1.0] * 9


def test_newest_backups_are_kept(tmp_path):
    model, data = model_and_data()
    backup = BackupAndRestore(tmp_path, 1, keep=3, delete_checkpoint=False)
    model.fit(**data, epochs=2, callbacks=[backup])
    names = [path.name for path in backups_in(tmp_path)]
    assert names == [backup_file.file_name(*at) for at in ((2, 0), (1, 3), (1, 2))]
    # A finished training resumes without an update.
    before = model.get_weights()
    model.fit(**data, epochs=2, callbacks=[backup])
    for mine, theirs in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_state_of_early_stopping_is_restored(tmp_path):
    model, data = model_and_data()

    def callbacks():
        # No epoch counts as an improvement after the first.
        stopping = keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=2)
        return [stopping, BackupAndRestore(tmp_path)]

    with pytest.raises(Stop):
        model.fit(**data, epochs=9, callbacks=[*callbacks(), StopAt(2)])
    again, data = model_and_data()
    history = again.fit(**data, epochs=9, callbacks=callbacks())
    # Epochs 1 and 2 before the interruption, one after: a patience of two.
    assert len(history.epoch) == 1


def test_invalid_uses_raise(tmp_path):
    for arguments, error, words in (
        ({"save_freq": 0}, ValueError, "save_freq=0"),
        ({"save_freq": "batch"}, TypeError, "save_freq='batch'"),
        ({"keep": 0}, ValueError, "keep=0"),
    ):
        with pytest.raises(error, match=words):
            BackupAndRestore(tmp_path, **arguments)
    model, data = model_and_data()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Make it in the scope of .*on one device"):
        model.fit(**data, callbacks=[BackupAndRestore(tmp_path)])
    model, data = model_and_data()
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match="save_freq=2 without a random seed"):
        model.fit(**data, callbacks=[BackupAndRestore(tmp_path, 2)])


def test_backup_of_another_model_raises(tmp_path):
    interrupted(tmp_path)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.compile(LargeBatchOptimizer(LARS(0.1)), "mse")
    _, data = model_and_data()
    with pytest.raises(ValueError, match=r"model: .* 1 in the backup, 2 in this"):
        other.fit(**data, callbacks=[BackupAndRestore(tmp_path)])


def test_order_of_the_epoch_after_a_skipped_one():
    """The inner one of two `Dataset.shuffle` starts only when it is read."""

    def epochs():
        tf.random.set_seed(3)
        dataset = tf.data.Dataset.range(8).shuffle(8).shuffle(8).batch(2)
        return EpochData(lambda: DatasetElements(dataset))

    def order(data):
        iterator = iter(data)
        return [number for _ in range(4) for number in next(iterator).numpy().tolist()]

    whole, resumed = epochs(), epochs()
    first, second = order(whole), order(whole)
    resumed.pass_epoch()
    assert order(resumed) == second != first
