"""Backups in an S3 server on this machine."""

import urllib.request

import pytest

from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks.backups import backup_file
from keras_fastnet.callbacks.backups.backup_folder import ObjectStore, wait_for_backups
from tests.callbacks.backup_trainings import assert_same_weights, fit

moto = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")


@pytest.fixture
def url(monkeypatch):
    """An empty bucket's folder, for this process and those that it starts."""
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    # The process keeps what an earlier server had.
    urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket/some/backups"
    server.stop()


def test_interrupted_training_ends_with_the_same_weights(url, tmp_path, capsys):
    whole, _ = fit(tmp_path)
    fit(url, stop_after=6)
    # Of the first batches of the second epoch.
    kept = [backup_file.file_name(1, batch) for batch in (1, 2)]
    files = ObjectStore(url)
    assert sorted(files.names()) == kept
    fit(url, stop_after=1)
    assert "resuming at epoch 2, batch 3, after 6 updates, from s3://bucket/" in (
        capsys.readouterr().out
    )
    newest = backup_file.file_name(1, 3)
    content = files.read(newest)
    files.write(newest, lambda file: file.write(content[: len(content) // 2]))
    resumed, _ = fit(url)
    assert f"skipping {url}/{newest}: the file is damaged" in capsys.readouterr().out
    assert_same_weights(resumed, whole)
    assert files.names() == []


class Remove(keras.callbacks.Callback):
    """Takes the bucket away for two updates."""

    def on_train_batch_end(self, batch, logs=None):
        wait_for_backups()
        if self.model.optimizer.iterations == 2:
            s3fs.S3FileSystem().rm("bucket", recursive=True)
        elif self.model.optimizer.iterations == 4:
            s3fs.S3FileSystem().mkdir("bucket")


def test_training_continues_while_the_bucket_is_gone(url, capsys):
    fit(url, Remove(), epochs=2, delete_checkpoint=False)
    printed = capsys.readouterr().out
    assert "WARNING: no backup could be written" in printed
    assert sorted(ObjectStore(url).names()) == [
        backup_file.file_name(*position) for position in ((1, 3), (2, 0))
    ]


def test_unreachable_store_raises_before_the_first_step(url):
    with pytest.raises(ValueError, match=r"Received: s3://no-such-bucket/backups, for"):
        fit("s3://no-such-bucket/backups")
    with pytest.raises(ValueError, match=r"for which the system reports: .*Protocol"):
        fit("nonsense://bucket/backups")
