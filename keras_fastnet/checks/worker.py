"""One worker of `fastnet check`.

`fastnet check` starts it as `python -m keras_fastnet.checks.worker SECONDS FILE
[SOURCE [ARGUMENT …]]`. SOURCE is a `.keras` file, or a script with its arguments. Rank
0 writes the exit code to FILE; every worker writes the text of a `UsageError` after it.
"""

import contextlib
import os
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tensorflow as tf

import keras_fastnet
from keras_fastnet._keras.keras_api import keras
from keras_fastnet.checks import Subject, Verdict, check
from keras_fastnet.checks.invariants import ALL, name_of
from keras_fastnet.checks.script import subject_of_script
from keras_fastnet.errors import ClusterError, UsageError

_EXIT_CODES = {"pass": 0, "fail": 1, "refused": 3}
_WIDTH = 88


def check_cluster(source: Sequence[str], timeout: float) -> tuple[int, int]:
    """Joins the cluster of this process, checks it, and prints on rank 0.

    Args:
        source: The `.keras` file of the model, or a script and its arguments; empty for
            a small network.
        timeout: The seconds that one invariant may take.

    Returns:
        The worker's rank and the exit code.

    Raises:
        UsageError: If the cluster cannot form, or the script has no `fit` to check.
    """
    if source and Path(source[0]).suffix == ".py":
        strategy, subject = subject_of_script(source[0], source[1:])
        subject.make_model = _compiled(subject.make_model)
        return strategy.rank, _print_verdicts(strategy, subject, timeout)
    try:
        strategy = keras_fastnet.TorusStrategy()
    except ClusterError as error:
        raise UsageError(str(error)) from error
    saved = None
    if source:
        (path,) = source
        saved = Subject(_compiled(lambda: keras.models.load_model(path)), name=path)
    return strategy.rank, _print_verdicts(strategy, saved, timeout)


def _print_verdicts(
    strategy: keras_fastnet.TorusStrategy, subject: Subject | None, timeout: float
) -> int:
    # TensorFlow warns of the many traces that many small models make, Keras of data
    # that end early on purpose.
    tf.get_logger().setLevel("ERROR")
    warnings.filterwarnings("ignore", category=UserWarning, module="keras")
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
            text = _as_text(Verdict(invariant, "fail", details))
            # `sys.stdout` is another one while a script runs again.
            print(text, file=sys.__stdout__, flush=True)
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


def _compiled(make_model: Callable[[], object]) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        model = make_model()
        if not isinstance(model, keras.Model) or not model.compiled:
            raise ValueError(
                "A model to check must be compiled: the check needs its loss and "
                f"optimizer. Received: {model!r}. Call `model.compile(...)` before "
                "`fit`, or before you save the model."
            )
        return model

    return make


def main() -> None:
    """Runs one worker that `fastnet check` started."""
    seconds, file, *source = sys.argv[1:]
    try:
        rank, code = check_cluster(source, float(seconds))
        answer = str(code) if rank == 0 else ""
    except UsageError as error:
        answer = f"2\n{error}"
    if answer:
        Path(file).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
