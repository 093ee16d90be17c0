"""A callback that stores backups in Ray Train."""

import pathlib
import secrets
import tempfile
from typing import Any, Literal

from keras_fastnet.callbacks.backup_and_restore import BackupAndRestore
from keras_fastnet.callbacks.progress import is_chief


class RayBackup(BackupAndRestore):
    """`BackupAndRestore` for the workers of Ray Train's `TensorflowTrainer`.

    Reports every backup to Ray as a checkpoint, with the logs of the epoch so far as
    its metrics; Ray stores it in `RunConfig(storage_path=...)`. If a worker is lost and
    `FailureConfig(max_failures=...)` allows it, Ray restarts all workers, on any nodes,
    and they resume from the newest backup. Ray's `CheckpointConfig` sets how many
    backups are kept. List it last, so that the logs of other callbacks are reported.

    Args:
        save_freq: As for `BackupAndRestore`. Defaults to `"epoch"`.

    Raises:
        RuntimeError: From `fit`, before the first step: if Ray Train did not start this
            process, or is not installed.

    Example:

    ```python
    def train():
        keras.utils.set_random_seed(1)
        strategy = keras_fastnet.TorusStrategy()
        ...
        model.fit(x, y, epochs=90, callbacks=[keras_fastnet.callbacks.RayBackup()])
    ```
    """

    def __init__(self, save_freq: Literal["epoch"] | int = "epoch"):
        # Made on the chief when needed. Ray keeps a copy of each backup.
        folder = f"fastnet-{secrets.token_hex(8)}"
        super().__init__(pathlib.Path(tempfile.gettempdir(), folder), save_freq, keep=1)
        self._train: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resumes from Ray's newest checkpoint, if there is one."""
        self._train = _ray_train()
        checkpoint = self._train.get_checkpoint()
        if checkpoint is not None and is_chief(self.model):
            checkpoint.to_directory(str(self.backup_dir))
        super().on_train_begin(logs)

    def _back_up(self, epoch: int, batch: int, logs: dict[str, Any] | None) -> None:
        super()._back_up(epoch, batch, logs)
        checkpoint = None
        # Ray copies the file when it is reported. There is none if the disk was full.
        if is_chief(self.model) and self._folder.wait():
            checkpoint = self._train.Checkpoint.from_directory(str(self.backup_dir))
        metrics = {"epochs": epoch, "batches": batch, **(logs or {})}
        # On all workers, since Ray waits for each.
        self._train.report(metrics, checkpoint=checkpoint)


def _ray_train() -> Any:
    try:
        from ray import train

        train.get_context().get_world_rank()
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            "RayBackup must run in a worker that Ray Train has started, with "
            f'`pip install "ray[train]"`. Received: {type(error).__name__}: '
            f"{error}. Use `BackupAndRestore` outside of Ray Train."
        ) from error
    return train
