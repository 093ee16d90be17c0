"""One worker of `fastnet check`.

`python -m keras_fastnet.checks.worker SOURCE SECONDS FILE`, started by `fastnet
check`. Rank 0 writes to FILE the exit code, and what the user did wrong.
"""

import contextlib
import os
import runpy
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.checks import Subject, Verdict, check
from keras_fastnet.checks.invariants import ALL, name_of
from keras_fastnet.cli.check import check_source
from keras_fastnet.errors import ClusterError, UsageError

_EXIT_CODES = {"pass": 0, "fail": 1, "refused": 3}
_WIDTH = 88


def take_part(source: str, timeout: float) -> int:
    """Joins the cluster of TF_CONFIG, checks it, and prints on rank 0.

    Args:
        source: What the user wants checked; empty for nothing of his own.
        timeout: Seconds that an invariant may take.

    Returns:
        The exit code.

    Raises:
        UsageError: The cluster cannot form, or there is no model in the source.
    """
    try:
        strategy = keras_fastnet.TorusStrategy()
    except ClusterError as error:
        raise UsageError(str(error)) from error
    return _check(strategy, _subject(source), timeout)


def _check(
    strategy: keras_fastnet.TorusStrategy, subject: Subject | None, timeout: float
) -> int:
    # Many small models make many traces; that is no news.
    tf.get_logger().setLevel("ERROR")
    if strategy.rank == 0:
        what = subject.name if subject else "a small network"
        print(f"{strategy.describe()}\n\nchecking {what}:", flush=True)
    found: list[str] = []
    verdicts = check(strategy, subject)
    for invariant in ALL:
        with _ended_after(timeout, name_of(invariant), strategy.rank):
            verdict = next(verdicts)
        found.append(verdict.result)
        if strategy.rank == 0:
            print(_as_text(verdict), flush=True)
    if strategy.rank == 0:
        counts = [f"{found.count(kind)} {kind}" for kind in _EXIT_CODES]
        print(f"\n{', '.join(counts)}", flush=True)
    worst = "fail" if "fail" in found else max(found, key=_EXIT_CODES.__getitem__)
    return _EXIT_CODES[worst]


@contextlib.contextmanager
def _ended_after(seconds: float, invariant: str, rank: int) -> Iterator[None]:
    """Ends the process where the workers wait for each other, deaf to exceptions."""

    def end() -> None:
        if rank == 0:
            details = f"no end within {seconds:g} s: the workers wait for each other"
            print(_as_text(Verdict(invariant, "fail", details)), flush=True)
        os._exit(1)

    # The others after rank 0 has told: who ends first has all ended.
    timer = threading.Timer(seconds if rank == 0 else seconds + 5.0, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _as_text(verdict: Verdict) -> str:
    details = textwrap.wrap(
        verdict.details, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9
    )
    return "\n".join([f"{verdict.result:<8} {verdict.invariant}", *details])


def _subject(source: str) -> Subject | None:
    found = check_source(source)
    if found is None:
        return None
    path, function = found
    if path.suffix == ".keras":
        return Subject(lambda: _loaded(str(path)), name=str(path))
    names = runpy.run_path(str(path), run_name="fastnet_check")
    if not callable(names.get(function)):
        raise UsageError(
            f"The script must have a function `{function}` that returns a compiled "
            f"model. Received: {path} without it. Add it, or name another: "
            f"`{path}:other`."
        )
    return Subject(_compiled(names[function]), names.get("make_data"), str(path))


def _compiled(make_model: Any) -> Any:
    def make() -> keras.Model:
        model = make_model()
        if not isinstance(model, keras.Model) or not model.compiled:
            raise ValueError(
                "A model that is checked must be compiled: its loss and optimizer are "
                f"part of it. Received: {model!r}. Call `model.compile(...)` before "
                "it is returned or saved."
            )
        return model

    return make


def _loaded(path: str) -> keras.Model:
    return _compiled(lambda: keras.models.load_model(path))()


def main() -> None:
    """Runs one worker that `fastnet check` started."""
    source, seconds, file = sys.argv[1:]
    strategy = keras_fastnet.TorusStrategy()
    try:
        answer = f"{_check(strategy, _subject(source), float(seconds))}"
    except UsageError as error:
        answer = f"2\n{error}"
    if strategy.rank == 0:
        Path(file).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
