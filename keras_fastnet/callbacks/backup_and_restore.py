"""A callback that resumes an interrupted training at the same update."""

import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from keras_fastnet._keras import tensorflow as upstream
from keras_fastnet._keras.adapters import models as keras_models
from keras_fastnet._keras.adapters import values
from keras_fastnet._keras.keras_api import keras
from keras_fastnet._keras.protocols import FastnetCallback, FastnetStrategy, strategy_of
from keras_fastnet._keras.training import data_of
from keras_fastnet.arguments import checked_bool, checked_integer
from keras_fastnet.callbacks import backup_file
from keras_fastnet.callbacks.progress import (
    batches_per_update,
    is_chief,
    print_on_chief,
    updates_of,
)
from keras_fastnet.callbacks.termination import EXIT_CODE, Termination
from keras_fastnet.text import count

# Marks an error message in place of a backup. As long as a checksum, so that no backup
# begins with it by chance.
_ERROR_MARK = b"keras_fastnet refuses to restore"
# Attributes in which Keras's callbacks keep their state.
_STATE = ("best", "best_epoch", "wait", "cooldown_counter", "stopped_epoch")
_STATEFUL = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.ModelCheckpoint,
)


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
    damaged all the same is skipped in favour of the one before.

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
        backup_dir: The folder of the backups, used by this training only.
        save_freq: `"epoch"`, or the number of updates after which to back up in
            addition. A number requires a random seed, without which the data would come
            in another order. Defaults to `"epoch"`.
        keep: Number of backups to keep. Defaults to `2`.
        delete_checkpoint: Whether to remove the backups at the end of training.
            Defaults to `True`, as in Keras.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of its range. From `fit`, before the first
            step: if the backups are of another model, all of them are damaged, no
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

    def __init__(
        self,
        backup_dir: str | pathlib.Path,
        save_freq: Literal["epoch"] | int = "epoch",
        *,
        keep: int = 2,
        delete_checkpoint: bool = True,
    ):
        super().__init__()
        self.backup_dir = pathlib.Path(backup_dir)
        self.save_freq = save_freq
        if save_freq != "epoch":
            checked_integer("save_freq", save_freq, at_least=1)
        self.keep = checked_integer("keep", keep, at_least=1)
        self.delete_checkpoint = checked_bool("delete_checkpoint", delete_checkpoint)
        self._epoch = 0
        self._updates_saved = 0
        self._restored: dict[str, Any] | None = None
        self._data: Any = None
        self._termination = Termination()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resumes from the newest backup, if there is one."""
        self._check()
        keras_models.build_state(self.model, self._data.elements)
        self._restored = None
        content = self._from_chief(self._newest() if is_chief(self.model) else b"")
        if content.startswith(_ERROR_MARK):
            raise ValueError(content.removeprefix(_ERROR_MARK).decode())
        if content:
            self._restore(*backup_file.unpack(content))
        self._updates_saved = updates_of(self.model.optimizer)
        self._termination.listen()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores state that Keras and other callbacks have reset."""
        self._epoch = epoch
        keras_models.begin_fit_at(self.model, None)
        if self._restored is None:
            return
        variables = keras_models.whole_state(self.model)
        for name, value in self._restored["metrics"].items():
            variables[name].assign(value)
        for callback, numbers in zip(
            stateful_callbacks(self.siblings), self._restored["callbacks"], strict=True
        ):
            vars(callback).update(numbers)
        self._restored = None

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Backs up after every `save_freq` updates, and before leaving on SIGTERM."""
        optimizer = self.model.optimizer
        if (batch + 1) % batches_per_update(optimizer, self._data):
            return
        ending = self._termination.is_due(self.model)
        unsaved = updates_of(optimizer) - self._updates_saved
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
        """Removes the backups."""
        self._data = None
        self._termination.stop_listening()
        if self.delete_checkpoint and is_chief(self.model):
            backup_file.remove(self.backup_dir)

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

    def _newest(self) -> bytes:
        """Returns the newest intact file; empty bytes if there are no backups."""
        damaged = []
        for path in backup_file.backups(self.backup_dir):
            content = path.read_bytes()
            try:
                backup_file.unpack(content)
            except ValueError as error:
                damaged.append(path.name)
                print_on_chief(self.model, f"skipping {path}: {error}")
            else:
                return content
        if not damaged:
            return b""
        # Sent in place of a backup, so that all workers raise the error.
        return (
            _ERROR_MARK
            + (
                "At least one backup must be intact. Received: only damaged ones in "
                f"{self.backup_dir} ({', '.join(damaged)}). Remove them to start over."
            ).encode()
        )

    def _restore(self, arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        variables = keras_models.whole_state(self.model)
        check_same(variables, arrays, self.backup_dir)
        for name, array in arrays.items():
            if not name.startswith("metrics/"):
                variables[name].assign(array)
        metrics = {n: a for n, a in arrays.items() if n.startswith("metrics/")}
        epoch, batch = about["epoch"], about["batch"]
        if batch == 0:
            metrics = {}
        self._restored = {"metrics": metrics, "callbacks": about["callbacks"]}
        self._data.resume(epoch, batch)
        keras_models.begin_fit_at(self.model, epoch)
        print_on_chief(
            self.model,
            f"resuming at epoch {epoch + 1}, batch {batch + 1}, after "
            f"{count(updates_of(self.model.optimizer), 'update')}, from "
            f"{self.backup_dir}",
        )

    def _leave(self) -> None:
        print_on_chief(
            self.model, "SIGTERM: run the same command to resume from the newest backup"
        )
        strategy = strategy_of(self.model)
        if strategy is not None:
            # No worker leaves before the chief has written the backup.
            strategy.fit_support.workers.any(True, "the last backup")
        raise SystemExit(EXIT_CODE)

    def _back_up(self, epoch: int, batch: int, logs: dict[str, Any] | None) -> None:
        self._save(epoch, batch)
        self._updates_saved = updates_of(self.model.optimizer)

    def _save(self, epoch: int, batch: int) -> None:
        arrays = {
            name: values.to_numpy(variable)
            for name, variable in keras_models.whole_state(self.model).items()
            # Metrics are sums over the workers, so all workers must read them.
            if is_chief(self.model) or name.startswith("metrics/")
        }
        if not is_chief(self.model):
            return
        states = [state_of(callback) for callback in stateful_callbacks(self.siblings)]
        about = {"epoch": epoch, "batch": batch, "callbacks": states}
        path = self.backup_dir / backup_file.file_name(epoch, batch)
        backup_file.write(path, backup_file.pack(arrays, about))
        backup_file.remove(self.backup_dir, keep=self.keep)

    def _from_chief(self, data: bytes) -> bytes:
        strategy = self.model.distribute_strategy
        return (
            strategy.fit_support.workers.from_chief(data)
            if isinstance(strategy, FastnetStrategy)
            else data
        )


def stateful_callbacks(callbacks: Sequence[Any]) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of Keras whose state is backed up.

    Args:
        callbacks: All callbacks of a training.
    """
    return [callback for callback in callbacks if isinstance(callback, _STATEFUL)]


def state_of(callback: keras.callbacks.Callback) -> dict[str, float | None]:
    """Returns the state of a callback, without its settings.

    Args:
        callback: A result of `stateful_callbacks`.
    """
    state = {name: vars(callback)[name] for name in _STATE if name in vars(callback)}
    return {n: None if v is None else float(v) for n, v in state.items()}


def check_same(
    variables: dict[str, Any],
    arrays: dict[str, np.ndarray],
    folder: pathlib.Path,
) -> None:
    """Checks that a backup is of the same model and optimizer.

    Args:
        variables: The model's state, by name.
        arrays: The backup's arrays, by name.
        folder: The folder of the backup.

    Raises:
        ValueError: If names or shapes differ.
    """
    mine = {name: (values.path(v), tuple(v.shape)) for name, v in variables.items()}
    theirs = {name: tuple(array.shape) for name, array in arrays.items()}
    for name in sorted({*mine, *theirs}):
        path, shape = mine.get(name, ("nothing", None))
        if shape != theirs.get(name):
            raise ValueError(
                "A backup must be of the same model and optimizer. Received: "
                f"{path} of shape {shape}, while {folder} holds the shape "
                f"{theirs.get(name)}. Train the same model, or pass another "
                "`backup_dir`."
            )
