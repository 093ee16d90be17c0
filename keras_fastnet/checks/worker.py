"""One worker of `fastnet check`.

`fastnet check` starts it as `python -m keras_fastnet.checks.worker MODEL FUNCTION
SECONDS FILE`. MODEL is empty, a `.keras` file, or a script whose FUNCTION makes the
model. Rank 0 writes the exit code to FILE and, on the lines after it, the text of a
`UsageError`.
"""

import contextlib
import os
import runpy
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.checks import Subject, Verdict, check
from keras_fastnet.checks.invariants import ALL, name_of
from keras_fastnet.errors import ClusterError, UsageError

_EXIT_CODES = {"pass": 0, "fail": 1, "refused": 3}
_WIDTH = 88


def check_cluster(model: str, function: str, timeout: float) -> int:
    """Joins the cluster of this process, checks it, and prints on rank 0.

    Args:
        model: The `.keras` file or script of the model; empty for a small network.
        function: The function of the script that makes the model.
        timeout: The seconds that one invariant may take.

    Returns:
        The exit code.

    Raises:
        UsageError: If the cluster cannot form, or the script has no such function.
    """
    try:
        strategy = keras_fastnet.TorusStrategy()
    except ClusterError as error:
        raise UsageError(str(error)) from error
    return _print_verdicts(strategy, _subject(model, function), timeout)


def _print_verdicts(
    strategy: keras_fastnet.TorusStrategy, subject: Subject | None, timeout: float
) -> int:
    # TensorFlow warns of the many traces that many small models make.
    tf.get_logger().setLevel("ERROR")
    if strategy.rank == 0:
        name = subject.name if subject else "a small network"
        print(f"{strategy.describe()}\n\nchecking {name}:", flush=True)
    results: list[str] = []
    verdicts = check(strategy, subject)
    for invariant in ALL:
        with _exit_after(timeout, name_of(invariant), strategy.rank):
            verdict = next(verdicts)
        results.append(verdict.result)
        if strategy.rank == 0:
            print(_as_text(verdict), flush=True)
    if strategy.rank == 0:
        counts = [f"{results.count(kind)} {kind}" for kind in _EXIT_CODES]
        print(f"\n{', '.join(counts)}", flush=True)
    worst = "fail" if "fail" in results else max(results, key=_EXIT_CODES.__getitem__)
    return _EXIT_CODES[worst]


@contextlib.contextmanager
def _exit_after(seconds: float, invariant: str, rank: int) -> Iterator[None]:
    """Exits the process if its workers wait for each other inside the context.

    No exception can end that wait: it happens inside TensorFlow.
    """

    def end() -> None:
        if rank == 0:
            details = f"no end within {seconds:g} s: the workers wait for each other"
            print(_as_text(Verdict(invariant, "fail", details)), flush=True)
        os._exit(1)

    # Other ranks wait 5 s longer, so that rank 0 can print before exits propagate.
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


def _subject(model: str, function: str) -> Subject | None:
    if not model:
        return None
    if Path(model).suffix == ".keras":
        return Subject(_compiled(lambda: keras.models.load_model(model)), name=model)
    names = runpy.run_path(model, run_name="fastnet_check")
    if not callable(names.get(function)):
        raise UsageError(
            f"The script must have a function `{function}` that returns a compiled "
            f"model. Received: {model} without it. Add it, or name another: "
            f"`{model}:other`."
        )
    return Subject(_compiled(names[function]), names.get("make_data"), model)


def _compiled(make_model: Callable[[], object]) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        model = make_model()
        if not isinstance(model, keras.Model) or not model.compiled:
            raise ValueError(
                "A model to check must be compiled: the check needs its loss and "
                f"optimizer. Received: {model!r}. Call `model.compile(...)` before "
                "the function returns the model, or before you save it."
            )
        return model

    return make


def main() -> None:
    """Runs one worker that `fastnet check` started."""
    model, function, seconds, file = sys.argv[1:]
    strategy = keras_fastnet.TorusStrategy()
    try:
        code = _print_verdicts(strategy, _subject(model, function), float(seconds))
        answer = str(code)
    except UsageError as error:
        answer = f"2\n{error}"
    if strategy.rank == 0:
        Path(file).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
