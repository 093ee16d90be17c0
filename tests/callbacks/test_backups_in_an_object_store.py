"""Backups in an S3 server on this machine."""

import contextlib
import json
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest

from keras_fastnet import LARS, LargeBatchOptimizer
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.callbacks import BackupAndRestore
from keras_fastnet.callbacks.backups import backup_file, folder_lock
from keras_fastnet.callbacks.backups.backup_writer import wait_for_writers
from keras_fastnet.callbacks.backups.remote_files import RemoteFiles
from tests.stopping import Stop, StopAfter

moto = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")


@pytest.fixture(scope="module")
def server():
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def url(server, monkeypatch, request):
    """An empty bucket's folder, for this process and those that it starts."""
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{zlib.crc32(request.node.name.encode())}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/some/backups"


def names(url):
    return sorted(RemoteFiles(url).names())


def fit(url, *callbacks, save_freq=1, **options):
    keras.utils.set_random_seed(5)
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(LargeBatchOptimizer(LARS(0.1)), "mse")
    backup = BackupAndRestore(url, save_freq, **options)
    try:
        model.fit(
            x,
            x[:, :1],
            batch_size=16,
            epochs=2,
            verbose=0,
            callbacks=[*callbacks, backup],
        )
    except Stop:
        wait_for_writers()
    return model.get_weights()


def test_interrupted_training_ends_with_the_same_weights(url, tmp_path, capsys):
    whole = fit(tmp_path)
    fit(url, StopAfter(6))
    lock, *kept = names(url)[::-1]
    # Within the second epoch, and its beginning.
    assert kept == [backup_file.file_name(1, batch) for batch in (1, 0)]
    assert lock == "training-000000001.lock"
    resumed = fit(url)
    assert "resuming at epoch 2, batch 2, after 5 updates, from s3://bucket-" in (
        capsys.readouterr().out
    )
    for mine, theirs in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert names(url) == []


def test_damaged_backup_is_skipped(url, capsys):
    fit(url, StopAfter(6))
    name = backup_file.file_name(1, 1)
    files = RemoteFiles(url)
    content = files.read(name)
    files.put(name, content[: len(content) // 2])
    fit(url)
    printed = capsys.readouterr().out
    assert f"skipping {url}/{name}: the file is damaged" in printed
    assert "resuming at epoch 2, batch 1" in printed


def test_training_continues_while_the_bucket_is_gone(url, capsys):
    store = s3fs.S3FileSystem()
    bucket = url.split("/")[2]

    class Remove(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            wait_for_writers()
            updates = int(self.model.optimizer.iterations)
            if updates == 2:
                store.rm(bucket, recursive=True)
            elif updates == 4:
                store.mkdir(bucket)

    fit(url, Remove(), delete_checkpoint=False)
    printed = capsys.readouterr().out
    assert printed.count("WARNING: no backup could be written") == 1
    assert f"backups are written to {url} again" in printed
    assert names(url) == [backup_file.file_name(*at) for at in ((1, 3), (2, 0))]


def test_unreachable_store_raises_before_the_first_step(url):
    with pytest.raises(ValueError, match=r"Received: s3://no-such-bucket/backups, for"):
        fit("s3://no-such-bucket/backups")
    with pytest.raises(ValueError, match=r"for which the system reports: .*Protocol"):
        fit("nonsense://bucket/backups")


# Takes the lock of a folder, and holds it until its input ends.
HOLD = """
import sys
from keras_fastnet.callbacks.backups.remote_files import RemoteFiles
lock = RemoteFiles(sys.argv[1]).lock
sys.stdin.readline()
try:
    lock.take(0, 2)
except Exception as error:
    print(error, flush=True)
else:
    print("held", flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that takes a lock when it is told to."""

    def __init__(self, url):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holders(url):
    holders = [Holder(url) for _ in range(2)]
    yield holders
    for holder in holders:
        holder.end()


@pytest.mark.slow
def test_one_process_takes_the_folder(url, holders):
    for holder in holders:
        holder.begin()
    answers = [holder.answer() for holder in holders]
    assert answers.count("held") == 1
    owner = holders[answers.index("held")]
    used = rf"is used by process {owner.process.pid} on host .* \(rank 0 of 2 workers\)"
    for answer in answers:
        assert answer == "held" or f"is used by process {owner.process.pid} " in answer
    with pytest.raises(ValueError, match=used):
        fit(url)
    # A dead process gives way at once.
    owner.end()
    fit(url, StopAfter(2))
    assert "training-000000002.lock" in names(url)
    fit(url)
    assert names(url) == []


def renew_of_another_host(url, times):
    """Writes a lock as a process on another host does."""
    owner = {"host": "other", "machine": "its boot", "process": 7, "rank": 0}
    owner |= {"workers": 3, "since": "yesterday", "renewed": times}
    RemoteFiles(url).put("training-000000004.lock", json.dumps(owner).encode())


def test_old_lock_of_another_host_is_taken_over(url, capsys, monkeypatch):
    monkeypatch.setattr(folder_lock, "STALE_SECONDS", 2.0)
    renew_of_another_host(url, 1)
    fit(url, StopAfter(2))
    assert "waiting up to 2 s for a sign of process 7" in capsys.readouterr().out
    assert [name for name in names(url) if name.endswith("lock")] == [
        "training-000000005.lock"
    ]
    fit(url)


@contextlib.contextmanager
def another_host(url):
    """Another host's process uses the folder."""
    ended = threading.Event()

    def renew():
        times = 1
        while not ended.wait(0.2):
            times += 1
            renew_of_another_host(url, times)

    renew_of_another_host(url, 1)
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_renewed_lock_of_another_host_raises(url):
    words = "is used by process 7 on host 'other'"
    with another_host(url), pytest.raises(ValueError, match=words):
        fit(url)


def test_training_that_lost_its_folder_writes_no_backup(url, capsys):
    """As after a suspension: another host has taken over."""
    with contextlib.ExitStack() as stack:
        take = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: stack.enter_context(another_host(url))
        )
        fit(url, take, StopAfter(3))
    assert "WARNING: no backup could be written" in capsys.readouterr().out
    assert [name for name in names(url) if name.endswith("backup")] == []
