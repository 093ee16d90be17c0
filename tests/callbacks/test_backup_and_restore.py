"""An interrupted training ends like an uninterrupted one."""

import json
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_fastnet import LARS, LargeBatchOptimizer, TorusStrategy
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BackupAndRestore, BatchGrowth, LearningRateWarmup
from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.training_state import set_callbacks
from tests.callbacks.backup_trainings import (
    arrays,
    assert_same_weights,
    backups_in,
    fit,
    network,
)


@pytest.fixture(scope="module")
def run():
    """Runs trainings in `tests.killed_training`; returns the exit statuses."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.killed_training"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:

        def run(folder, rank=None, step=None, **settings):
            command = {"folder": str(folder), "rank": rank, "step": step, **settings}
            print(json.dumps(command), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield run


@pytest.fixture
def folders(tmp_path):
    """Folders of an uninterrupted training, and of another one."""
    folders = tmp_path / "whole", tmp_path / "ended"
    for folder in folders:
        folder.mkdir()
    return folders


def assert_resumed(ended, whole, workers, exactly=True):
    assert "resuming at" in (ended / "rank0.log").read_text()
    for rank in range(workers):
        mine, theirs = (np.load(each / f"rank{rank}.npz") for each in (ended, whole))
        assert mine.files == theirs.files
        for name in mine:
            # Restored metrics are divided among the replicas.
            rtol, atol = (0, 0) if exactly and name != "logs" else (1e-4, 1e-5)
            np.testing.assert_allclose(mine[name], theirs[name], rtol, atol)


def slow(*case):
    return pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


# 30 steps with 2 x 10 + 4 updates of growing batches. A count that 16 does not divide
# gives smaller last batches.
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "count", "workers", "kills", "most_steps"),
    [
        slow("arrays", 160, 2, 30, 4),
        ("arrays", 160, 2, 1, 12),
        slow("own", 160, 2, 2, 12),
        slow("dataset", 160, 1, 2, 12),
        slow("dataset", 150, 2, 2, 12),
        slow("pydataset", 160, 1, 3, 8),
        slow("endless", 160, 1, 2, 12),
        slow("unknown", 160, 1, 3, 8),
    ],
)
def test_killed_at_random(run, folders, kind, count, workers, kills, most_steps):
    whole, killed = folders
    settings = {"kind": kind, "count": count, "workers": workers}
    assert run(whole, **settings) == [0] * workers
    generator = random.Random(kills)
    for _ in range(kills):
        rank, step = generator.randrange(workers), generator.randrange(most_steps)
        statuses = run(killed, rank, step, **settings)
        assert statuses[rank] == -signal.SIGKILL
    assert run(killed, **settings) == [0] * workers
    assert_resumed(killed, whole, workers, exactly=count % 16 == 0)
    assert not os.listdir(killed / "backups")


@pytest.mark.distributed
@pytest.mark.slow
def test_sigterm_to_one_worker(run, folders):
    """All workers leave after the same update, with a backup of it."""
    whole, told = folders
    settings = {"kind": "arrays", "count": 160, "workers": 2, "save_freq": "epoch"}
    assert run(whole, **settings) == [0, 0]
    statuses = run(told, rank=1, step=5, signal=signal.SIGTERM, **settings)
    assert statuses == [128 + signal.SIGTERM] * 2
    assert "run the same command to resume" in (told / "rank0.log").read_text()
    assert not (told / "rank0.npz").exists()
    assert run(told, **settings) == [0, 0]
    assert_resumed(told, whole, workers=2)


class Terminate(keras.callbacks.Callback):
    """Sends its process SIGTERM after an update."""

    def __init__(self, update):
        super().__init__()
        self.update = update

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == self.update:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def told():
    """What the program's own handler of SIGTERM notes."""
    told = []
    before = signal.signal(signal.SIGTERM, lambda *_: told.append(None))
    yield told
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("seed", "position"), [(5, (1, 2)), (None, (1, 0))])
def test_sigterm_leaves_a_backup(told, tmp_path, seed, position):
    """Without a seed, that of the epoch's end."""
    with pytest.raises(SystemExit) as ended:
        fit(tmp_path, Terminate(6), seed=seed, save_freq="epoch")
    assert (ended.value.code, told) == (143, [])
    assert backups_in(tmp_path)[0].name == backup_file.file_name(*position)


def test_sigterm_handler_is_that_of_the_program_after_fit(told, tmp_path):
    mine = signal.getsignal(signal.SIGTERM)
    fit(tmp_path, epochs=1)
    assert signal.getsignal(signal.SIGTERM) is mine
    # An exception ends it.
    fit(tmp_path, stop_after=1)
    os.kill(os.getpid(), signal.SIGTERM)
    assert told == [None]


def test_resuming_at_the_end_of_an_epoch(tmp_path, capsys):
    """After the last update and before the epoch's end, no batch is left."""

    def trained(folder, **options):
        with TorusStrategy().scope():
            keras.utils.set_random_seed(5)
            model = network()
            model.compile(LargeBatchOptimizer(LARS(0.1)), "mse")
            return fit(folder, model=model, **options)[0]

    whole = trained(tmp_path / "whole")
    trained(tmp_path / "killed", stop_after=4)
    again = trained(tmp_path / "killed")
    assert "resuming at" in capsys.readouterr().out
    assert again.optimizer.iterations.numpy() == 12
    assert_same_weights(again, whole)


def halving_plateau():
    return keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1e9)


def warmup_and_plateau():
    return LearningRateWarmup(0.1, 1, momentum_correction=True), halving_plateau()


def growth_and_plateau():
    growth = BatchGrowth({0: 16, 1: 32}, rate_exponent=1.0, momentum_correction=True)
    return growth, halving_plateau()


def scheduler_and_best_weights():
    # The second epoch is the best.
    first = {"min_delta": 1e9, "start_from_epoch": 1}
    best = keras.callbacks.EarlyStopping(
        "loss", patience=9, restore_best_weights=True, verbose=1, **first
    )
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate), best


@pytest.mark.parametrize(
    "kit", [warmup_and_plateau, growth_and_plateau, scheduler_and_best_weights]
)
def test_callbacks_resume_with_their_state(tmp_path, capsys, kit):
    """The rate, and all else that they set, is as if nothing had happened."""
    whole, logs = fit(tmp_path / "whole", *kit(), epochs=4)
    end = [line for line in capsys.readouterr().out.splitlines() if "Restoring" in line]
    killed = tmp_path / "killed"
    # From the end of the second epoch, and from the middle of the third.
    for save_freq in ("epoch", 1):
        fit(killed, *kit(), epochs=4, save_freq=save_freq, stop_after=11)
        again, later = fit(killed, *kit(), epochs=4)
        printed = capsys.readouterr().out
        assert "resuming at epoch 3, " in printed
        assert ("resuming at epoch 3, batch 1, " in printed) == (save_freq == "epoch")
        assert_same_weights(again, whole)
        for name in ("learning_rate", "loss"):
            np.testing.assert_allclose(later[name], logs[name][2:], rtol=1e-6)
        assert all(line in printed for line in end)


def test_state_goes_to_the_callback_of_its_class_and_monitor(tmp_path, capsys):
    def callbacks():
        saving = keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.keras"), "loss", save_best_only=True
        )
        one = keras.callbacks.EarlyStopping("loss", patience=9)
        other = keras.callbacks.EarlyStopping("learning_rate", patience=9, mode="min")
        return one, other, saving

    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    first = callbacks()
    fit(tmp_path / "backups", plateau, *first, stop_after=6)
    of_loss, of_rate, saving = callbacks()
    fit(tmp_path / "backups", saving, plateau, of_rate, of_loss, stop_after=1)
    bests = [float(callback.best) for callback in first]
    assert len(set(bests)) == 2
    for mine, best in zip((of_loss, of_rate, saving), bests, strict=True):
        assert mine.best == best
    fit(tmp_path / "backups", of_rate, stop_after=1)
    name = "ReduceLROnPlateau(monitor='loss')"
    assert f"{name} is not in both backup and training" in capsys.readouterr().out


def test_a_file_sets_known_numbers_only():
    stopping = keras.callbacks.EarlyStopping("loss", patience=3)
    stopping.best = 1.0
    state = {"best": "text", "wait": 2, "patience": 0, "model": None, "on_epoch_end": 1}
    set_callbacks([stopping], {}, {"EarlyStopping(monitor='loss')": state})
    assert (stopping.wait, stopping.best, stopping.patience) == (2, 1.0, 3)
    assert "on_epoch_end" not in vars(stopping)


def test_two_fits_of_a_program_need_two_folders(tmp_path):
    def program(folders, stop_after=None):
        model, _ = fit(folders[0], epochs=2)
        return fit(folders[1], model=model, epochs=2, stop_after=stop_after)[0]

    with pytest.raises(ValueError, match=r"same for another `fit` of the model"):
        program([tmp_path / "same"] * 2)
    folders = [tmp_path / "first", tmp_path / "second"]
    whole = program([tmp_path / "other", tmp_path / "another"])
    program(folders, stop_after=2)
    again = program(folders)
    assert again.optimizer.iterations == 16
    assert_same_weights(again, whole)


def test_finished_training_resumes_without_an_update(tmp_path):
    before, _ = fit(tmp_path, delete_checkpoint=False)
    after, logs = fit(tmp_path)
    assert logs == {}
    assert_same_weights(after, before)
    assert not os.listdir(tmp_path)


def test_invalid_uses_raise(tmp_path):
    for arguments in ({"save_freq": 0}, {"keep": 0}):
        with pytest.raises(ValueError, match="Received: "):
            BackupAndRestore(**{"backup_dir": tmp_path, **arguments})
    model = network()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Make it in the scope of .*on one device"):
        fit(tmp_path, model=model)
    with pytest.raises(ValueError, match="save_freq=2 without a random seed"):
        fit(tmp_path, save_freq=2, seed=None)
    with pytest.raises(ValueError, match="takes one BackupAndRestore"):
        fit(tmp_path, BackupAndRestore(tmp_path))
    x, y = arrays()
    model.compile(LargeBatchOptimizer(LARS(0.1)), "mse")
    callbacks = [BackupAndRestore(tmp_path), LearningRateWarmup(0.1, 1)]
    with pytest.raises(ValueError, match=r"listed after .* LearningRateWarmup after"):
        model.fit(x, y, callbacks=callbacks)
    assert not list(tmp_path.iterdir())
