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
    and they resume from the newest backup. (Ray's own `ReportCheckpointCallback` saves
    the model alone, so the training would repeat data.) Ray's `CheckpointConfig` sets
    how many backups are kept.

    List it after other callbacks, so that their logs are reported.

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

    TensorflowTrainer(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=4),
        run_config=ray.train.RunConfig(
            storage_path="/shared/runs",
            failure_config=ray.train.FailureConfig(max_failures=3),
        ),
    ).fit()
    ```
    """

    # The folder has a random name; a lock in it would be a part of checkpoints.
    _shared = False

    def __init__(self, save_freq: Literal["epoch"] | int = "epoch"):
        # Created on the chief when needed. Ray keeps a copy of each backup.
        folder = f"fastnet-{secrets.token_hex(8)}"
        super().__init__(
            pathlib.Path(tempfile.gettempdir(), folder),
            save_freq,
            keep=1,
            # Ray copies the file when it is reported.
            save_on_background=False,
        )
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
        # There is none if the disk was full.
        if is_chief(self.model) and self._folder.has_backups():
            checkpoint = self._train.Checkpoint.from_directory(str(self.backup_dir))
        metrics = {"epochs": epoch, "batches": batch, **(logs or {})}
        # On all workers, since Ray waits for each.
        self._train.report(metrics, checkpoint=checkpoint)


def _ray_train() -> Any:
    try:
        from ray import train
    except ImportError as error:
        raise RuntimeError(
            "RayBackup needs Ray Train. Received: an environment without it "
            f'({error}). Run `pip install "keras-fastnet[ray]"`, or use '
            "`BackupAndRestore`."
        ) from error
    try:
        train.get_context().get_world_rank()
    except RuntimeError as error:
        raise RuntimeError(
            "RayBackup must run in a worker of Ray Train. "
            f"Received: a process that Ray Train did not start ({error}). Use "
            "`BackupAndRestore` outside of Ray."
        ) from error
    return train
