"""A callback that resumes an interrupted training at the same update."""

import json
import pathlib
import time
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.active_strategy import FastnetStrategy, strategy_of
from keras_fastnet._keras.adapters import models as keras_models
from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.training import FastnetCallback, data_of
from keras_fastnet.arguments import checked_bool, checked_integer
from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.backup_folder import BackupFolder, folder_at
from keras_fastnet.callbacks.backups.backup_writer import (
    BackupWriter,
    described,
    wait_for_writers,
)
from keras_fastnet.callbacks.backups.callback_states import states_of
from keras_fastnet.callbacks.backups.identity import NAMES, Parts, identity_of
from keras_fastnet.callbacks.backups.restoring import Restoring, is_metric
from keras_fastnet.callbacks.progress import (
    batches_per_update,
    is_chief,
    print_on_chief,
    updates_of,
)
from keras_fastnet.callbacks.termination import EXIT_CODE, Termination
from keras_fastnet.cluster import events
from keras_fastnet.text import count

# Marks an error message in place of a backup. As long as the checksum with which the
# first formats begin, so that no backup begins with it by chance.
_ERROR_MARK = b"keras_fastnet refuses to restore"


class BackupAndRestore(FastnetCallback, keras.callbacks.Callback):
    """Keeps backups of a training, and resumes from the newest one.

    A program that is restarted ends with the weights of an uninterrupted run: bit-equal
    if its computations are deterministic and all batches have the same size.
    (TensorFlow's steps for several sizes round differently, depending on which size
    comes first.) A backup holds the weights, the optimizer with its momentum, learning
    rate and number of updates, the states of layers, metrics and random streams, the
    position in the data, and the state of Keras's `EarlyStopping`, `ReduceLROnPlateau`
    and `ModelCheckpoint`, except the weights of `restore_best_weights`.
    `LearningRateWarmup` and `BatchGrowth` follow from the epoch. (Keras's own
    `BackupAndRestore` repeats the interrupted epoch from its start, with the weights of
    its middle.)

    Only the chief writes and reads files and sends the values to the other workers, so
    workers need not share a disk. Backups are written atomically. A backup that is
    damaged all the same is skipped in favour of the one before. The folder is tried out
    and locked before the first step: another training cannot use it meanwhile. If a
    backup cannot be written later, because the disk is full for example, the chief
    prints a warning, training continues, and the next backup is tried as usual.

    A backup states which training it belongs to, in named parts: model, dtype policy,
    optimizer, learning rate, accumulation steps, loss, random seed, batch size, length,
    shapes, dtypes and first examples of the data, and the settings of
    `LearningRateWarmup` and `BatchGrowth`. `fit` raises `ValueError` with the parts
    that differ. The numbers of workers and epochs, metrics, other callbacks and
    versions of packages may change; a line is printed where that matters. A learning
    rate that callbacks have set is restored. State of a callback is restored by its
    class and monitor.

    The data are read again up to their position. Arrays and `PyDataset` come in the
    same order if `keras.utils.set_random_seed` was called; so does `Dataset.shuffle`,
    also after another `Dataset.shuffle`, for which the first batch of every finished
    epoch is read. Random numbers within `Dataset.map` restart; `keras_fastnet.datasets`
    uses none there. With `steps_per_epoch`, all data read so far are read again.

    After SIGTERM to one or all workers, they finish the same update, back up, and exit
    with code 143: within about a second, or at the end of a validation. Without a
    random seed they resume from the last backup before that. A second SIGTERM ends a
    worker at once. If `fit` does not run in the main thread, SIGTERM is not handled.

    List it after other callbacks. It needs a strategy of `keras_fastnet`, which may
    have a single process, or a `keras_fastnet.LargeBatchOptimizer`.

    Args:
        backup_dir: The folder of the backups, used by this training only. It is made
            if it is missing. A URL, such as `"s3://bucket/backups"`, is a folder in an
            object store, which `fsspec` reaches.
        save_freq: `"epoch"`, or the number of updates after which to back up in
            addition. A number requires a random seed, without which the data would come
            in another order. Defaults to `"epoch"`.
        keep: Number of backups to keep. Defaults to `2`.
        save_on_background: Whether training continues while the chief writes a copy of
            the state to the file, as in Keras's `OrbaxCheckpoint`. At the next backup
            and at the end it waits until the file is complete. Defaults to `True`.
        delete_checkpoint: Whether to remove the backups at the end of training.
            Defaults to `True`, as in Keras.
        may_differ: Names of parts, as the error states them, in which the backups may
            be of another training. The learning rate and the accumulation steps are
            then those of this training. Defaults to `()`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of its range. From `fit`, on all workers,
            before the first step: if the folder cannot be used or is used by another
            training, the backups are of another training, all of them are damaged, no
            random seed is set, or there is neither a strategy of `keras_fastnet` nor a
            `LargeBatchOptimizer`.

    Example:

    ```python
    keras.utils.set_random_seed(1)
    strategy = keras_fastnet.TorusStrategy()
    ...
    backup = keras_fastnet.callbacks.BackupAndRestore("backups", save_freq=500)
    model.fit(x, y, epochs=90, callbacks=[backup])
    ```
    """

    # Whether another training may use the folder.
    _shared = True

    def __init__(
        self,
        backup_dir: str | pathlib.Path,
        save_freq: Literal["epoch"] | int = "epoch",
        *,
        keep: int = 2,
        save_on_background: bool = True,
        delete_checkpoint: bool = True,
        may_differ: Collection[str] = (),
    ):
        super().__init__()
        if not str(backup_dir):
            raise ValueError(
                "`backup_dir` must name a folder. Received: an empty string. Pass, for "
                'example, `"backups"`.'
            )
        self.backup_dir = folder_at(backup_dir)
        self.save_freq = save_freq
        if save_freq != "epoch":
            checked_integer("save_freq", save_freq, at_least=1)
        self.keep = checked_integer("keep", keep, at_least=1)
        self.save_on_background = checked_bool("save_on_background", save_on_background)
        self.delete_checkpoint = checked_bool("delete_checkpoint", delete_checkpoint)
        self.may_differ = _checked_parts(may_differ)
        self._folder = BackupFolder(self.backup_dir, shared=self._shared)
        self._identity: Parts = {}
        self._epoch = 0
        self._updates_saved = 0
        self._restoring: Restoring | None = None
        self._writer: Any = None
        self._data: Any = None
        self._termination = Termination()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resumes from the newest backup, if there is one."""
        self._check()
        keras_models.build_state(self.model, self._data.elements)
        # Of a `fit` that an exception has ended.
        wait_for_writers()
        self._restoring = None
        self._writer = BackupWriter(self._folder, self.keep, self._note)
        self._identity = identity_of(self.model, self._data, self.siblings)
        content = self._from_chief(self._open() if is_chief(self.model) else b"")
        backup = None
        try:
            if content.startswith(_ERROR_MARK):
                raise ValueError(content.removeprefix(_ERROR_MARK).decode())
            if content:
                arrays, about = backup_file.unpack(content)
                restoring = Restoring(self.model, self.backup_dir, self._note)
                restoring.begin(
                    arrays, about, self._data, self._identity, self.may_differ
                )
                self._restoring = restoring
                updates = updates_of(self.model.optimizer)
                backup = described(self._folder, about, updates)
                self._note_repeated(about, updates)
        except BaseException:
            self._folder.close()
            raise
        if is_chief(self.model):
            events.tell("fit", backup=backup)
        self._updates_saved = updates_of(self.model.optimizer)
        self._termination.listen()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores state that Keras and other callbacks have reset."""
        self._epoch = epoch
        keras_models.begin_fit_at(self.model, None)
        if self._restoring is not None:
            self._restoring.finish(self.siblings)
            self._restoring = None

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Backs up after every `save_freq` updates, and before leaving on SIGTERM."""
        optimizer = self.model.optimizer
        if (batch + 1) % batches_per_update(optimizer, self._data):
            return
        updates = updates_of(optimizer)
        if is_chief(self.model):
            self._folder.record(updates)
        if batch + 1 == self.params.get("steps"):
            # `on_epoch_end` follows. From a backup here the epoch would resume without
            # a step, and so without logs.
            return
        ending = self._termination.is_due(self.model)
        unsaved = updates - self._updates_saved
        if self.save_freq == "epoch":
            # Without a seed, the data would resume in another order.
            wanted = ending and upstream.global_seed() is not None
        else:
            wanted = ending or unsaved >= self.save_freq
        if wanted and unsaved:
            self._back_up(self._epoch, batch + 1, logs)
        if ending:
            self._leave()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Backs up, and leaves if a worker received SIGTERM."""
        self._back_up(epoch + 1, 0, logs)
        if self._termination.is_due(self.model, now=True):
            self._leave()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Removes the backups, and releases the folder."""
        self._writer.close()
        self._data = None
        # Where no epoch was left to train.
        keras_models.begin_fit_at(self.model, None)
        self._termination.stop_listening()
        if is_chief(self.model):
            self._folder.remove_record()
            self._folder.close(delete=self.delete_checkpoint)
            if self.delete_checkpoint:
                events.tell("removed")

    def _check(self) -> None:
        # Looked up now, since validation replaces the model's data by its own.
        self._data = data_of(self.model)
        if self._data is None:
            raise ValueError(
                "BackupAndRestore needs a strategy of keras_fastnet or a "
                "LargeBatchOptimizer. Received: a model with neither. Make it in the "
                "scope of `keras_fastnet.TorusStrategy()`, even on one device."
            )
        if self.save_freq != "epoch" and upstream.global_seed() is None:
            raise ValueError(
                "Backups within an epoch require data in the same order after a "
                f"restart. Received: save_freq={self.save_freq} without a random "
                "seed. Call `keras.utils.set_random_seed(...)` at the start of the "
                'program, or pass `save_freq="epoch"`.'
            )

    def _open(self) -> bytes:
        """Takes the folder; returns the newest backup, or an error for all workers."""
        try:
            self._folder.open(
                self._size(),
                0,
                getattr(self.model.distribute_strategy, "num_workers", 1),
            )
            content, skipped = self._folder.newest()
        except (OSError, ValueError) as error:
            return _ERROR_MARK + str(error).encode()
        for text in skipped:
            self._note(text)
        return content

    def _note_repeated(self, about: dict[str, Any], updates: int) -> None:
        """Prints how many updates the interrupted training made after its backup."""
        recorded = self._folder.recorded() if is_chief(self.model) else None
        if recorded is None or recorded.updates <= updates or "time" not in about:
            return
        lost = count(recorded.updates - updates, "update")
        self._note(
            f"the interrupted training had made {lost} after this backup, in "
            f"{recorded.time - about['time']:.1f} s, which this one repeats"
        )

    def _size(self) -> int:
        """Returns the bytes of a backup, with some to spare."""
        state = keras_models.whole_state(self.model).values()
        arrays = sum(
            int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size + 1024 for v in state
        )
        return arrays + len(json.dumps(self._identity)) + 16_384

    def _leave(self) -> None:
        print_on_chief(
            self.model, "SIGTERM: run the same command to resume from the newest backup"
        )
        self._writer.wait()
        strategy = strategy_of(self.model)
        if strategy is not None:
            # No worker leaves before the chief has written the backup.
            strategy.fit_support.workers.any(True, "the last backup")
        if is_chief(self.model):
            if updates_of(self.model.optimizer) == self._updates_saved:
                self._folder.remove_record()
            self._folder.close()
        raise SystemExit(EXIT_CODE)

    def _back_up(self, epoch: int, batch: int, logs: dict[str, Any] | None) -> None:
        updates = updates_of(self.model.optimizer)
        self._updates_saved = updates
        state = keras_models.whole_state(self.model)
        if not is_chief(self.model):
            for name in filter(is_metric, state):
                # A sum over the workers, so all workers must read it.
                upstream.value_of(values.tensorflow_variable(state[name]))
            return
        content = {
            name: upstream.value_of(values.tensorflow_variable(variable))
            for name, variable in state.items()
        }
        about = {
            "format": backup_file.FORMAT,
            "epoch": epoch,
            "batch": batch,
            "time": time.time(),
            "callbacks": states_of(self.siblings),
            "parts": self._identity,
        }
        self._writer.start(content, about, updates)
        if not self.save_on_background:
            self._writer.wait()

    def _note(self, text: str) -> None:
        print_on_chief(self.model, text)

    def _from_chief(self, data: bytes) -> bytes:
        strategy = self.model.distribute_strategy
        return (
            strategy.fit_support.workers.from_chief(data)
            if isinstance(strategy, FastnetStrategy)
            else data
        )


def _checked_parts(names: Any) -> tuple[str, ...]:
    unknown = {names} if isinstance(names, str) else set(names) - set(NAMES)
    if unknown:
        raise ValueError(
            "`may_differ` must be a list of names of parts. Received: "
            f"may_differ={names!r}. The names are: {', '.join(sorted(NAMES))}."
        )
    return tuple(names)
