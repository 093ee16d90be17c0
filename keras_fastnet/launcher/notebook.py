"""`notebook_launcher`, which runs a function of a notebook in several workers."""

import contextlib
import io
import linecache
import os
import pickle
import signal
import sys
import tempfile
from collections import ChainMap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar, Literal

from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.supervisor import SIGNALS


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    workers: int,
    threads_per_worker: int | None = None,
    gpus_per_worker: int | None = None,
    transport: Literal["auto", "tensorflow", "mpi"] = "auto",
    log_dir: str | os.PathLike[str] | None = None,
) -> Any:
    """Runs a function in several local workers, from a notebook.

    The workers are new processes, like those of `fastnet run`, so the notebook may have
    used TensorFlow before. The function and the objects that it uses from the notebook
    are copied to them. So the function must create the strategy, the data and the model
    itself. The output of rank 0 is shown, and an interrupt of the notebook's kernel
    ends all workers.

    Args:
        function: The function. Each worker calls it.
        args: Its arguments. Defaults to `()`.
        workers: The number of workers.
        threads_per_worker: The size of each of a worker's thread pools. Defaults to
            `None`: the CPUs of this process divided by `workers`.
        gpus_per_worker: GPUs for each worker. Defaults to `None`: the visible GPUs
            divided by `workers`.
        transport: As for `fastnet run --transport`. Defaults to `"auto"`.
        log_dir: A directory for files with the whole output of each worker. Defaults to
            `None`.

    Returns:
        The function's result on rank 0.

    Raises:
        ImportError: If cloudpickle is not installed.
        TypeError: If the function, or an object that it uses, cannot be copied to the
            workers.
        RuntimeError: If a worker fails. The message has the traceback of the worker
            that failed first.
        UsageError: If the workers cannot be started.

    Example:

    ```python
    def train(epochs):
        strategy = fastnet.TorusStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        return model.fit(x, y, batch_size=1024, epochs=epochs).history


    history = fastnet.notebook_launcher(train, args=(3,), workers=2)
    ```
    """
    messages = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="fastnet-notebook-") as folder:
        Path(folder, "task").write_bytes(_task(function, args))
        with contextlib.redirect_stderr(messages):
            exit_code = launcher.run(
                workers,
                ["-m", "keras_fastnet.launcher.notebook_worker", folder],
                placement=launcher.Placement(
                    threads_per_worker=threads_per_worker,
                    gpus_per_worker=gpus_per_worker,
                ),
                transport=transport,
                log_dir=log_dir,
            )
        result = Path(folder, "result")
        if not exit_code:
            return pickle.loads(result.read_bytes()) if result.exists() else None
    number = exit_code - 128
    if number in SIGNALS and "failed first" not in messages.getvalue():
        # The signal that ended the workers was meant for this process too.
        signal.raise_signal(number)
    raise RuntimeError(messages.getvalue().strip())


def _task(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Returns the task that `notebook_worker` reads."""
    try:
        call = copied((function, tuple(args)))
    except ImportError as error:
        raise ImportError(
            "`notebook_launcher` needs cloudpickle, which copies a notebook's "
            f"functions to the workers. Received: {error}. Run `pip install "
            "cloudpickle`."
        ) from error
    except Exception as error:
        raise TypeError(
            "The function and the objects that it uses must be copyable to the "
            f"workers. Received: {function!r}, which is not ({error}). Create "
            "strategies, datasets and optimizers within the function."
        ) from error
    # A notebook's cells are not files; with these, tracebacks show their lines.
    cells = {
        name: lines
        for name, lines in linecache.cache.items()
        if len(lines) == 4 and not os.path.exists(name)
    }
    return pickle.dumps((sys.path, cells, call))


def copied(value: Any) -> bytes:
    """Returns a pickle of a value and the notebook's functions that it uses.

    Since 3.1.3, cloudpickle omits the file names of functions, by which AutoGraph and
    tracebacks find the lines of a notebook's cell.
    """
    import cloudpickle

    reducers = cloudpickle.Pickler.dispatch_table

    def reduced(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
        return _code_of_file, (code.co_filename, *reducers[CodeType](code))

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar = ChainMap({CodeType: reduced}, reducers)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _code_of_file(
    name: str, make: Callable[..., CodeType], made_from: tuple[Any, ...]
) -> CodeType:
    return make(*made_from).replace(co_filename=name)
