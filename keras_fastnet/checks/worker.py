"""One worker of `fastnet check`.

`fastnet check` starts it as `python -m keras_fastnet.checks.worker SECONDS FILE
[SCRIPT [ARGUMENT …]]`. Rank 0 writes the exit code to FILE; every worker writes the
text of a `UsageError` after it.
"""

import contextlib
import os
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

import keras_fastnet
from keras_fastnet.checks import Subject, Verdict, check
from keras_fastnet.checks.script import subject_of_script
from keras_fastnet.checks.subject import small_network
from keras_fastnet.errors import ClusterError, UsageError

_EXIT_CODES = {"note": 0, "pass": 0, "fail": 1, "refused": 3}
_WIDTH = 88


def check_cluster(script: Sequence[str], timeout: float) -> tuple[int, int]:
    """Joins the cluster of this process, checks it, and prints on rank 0.

    Args:
        script: The training script and its arguments; empty for a small network.
        timeout: The seconds that one verdict may take.

    Returns:
        The worker's rank and the exit code.

    Raises:
        UsageError: If the cluster cannot form, or the script has no `fit` to check.
    """
    if script:
        strategy, subject = subject_of_script(script[0], script[1:])
    else:
        subject = small_network()
        try:
            strategy = keras_fastnet.TorusStrategy()
        except ClusterError as error:
            raise UsageError(str(error)) from error
    return strategy.rank, _print_verdicts(strategy, subject, timeout)


def _print_verdicts(
    strategy: keras_fastnet.TorusStrategy, subject: Subject, timeout: float
) -> int:
    # TensorFlow warns of the traces that several models make, Keras of data that end
    # early on purpose.
    tf.get_logger().setLevel("ERROR")
    warnings.filterwarnings("ignore", category=UserWarning, module="keras")
    if strategy.rank == 0:
        print(f"{strategy.describe()}\n\nchecking {subject.name}:", flush=True)
    results: list[str] = []
    verdicts = check(strategy, subject)
    while True:
        with _exit_after(timeout, strategy.rank):
            verdict = next(verdicts, None)
        if verdict is None:
            break
        results.append(verdict.result)
        if strategy.rank == 0:
            print(_as_text(verdict), flush=True)
    if strategy.rank == 0:
        counted = (kind for kind in _EXIT_CODES if kind != "note")
        counts = [f"{results.count(kind)} {kind}" for kind in counted]
        print(f"\n{', '.join(counts)}", flush=True)
    worst = "fail" if "fail" in results else max(results, key=_EXIT_CODES.__getitem__)
    return _EXIT_CODES[worst]


@contextlib.contextmanager
def _exit_after(seconds: float, rank: int) -> Iterator[None]:
    """Exits the process if its workers wait for each other inside the context.

    No exception can end that wait: it happens inside TensorFlow.
    """

    def end() -> None:
        if rank == 0:
            details = "workers wait for each other, or --timeout is too short"
            verdict = Verdict(f"no end within {seconds:g} s", "fail", details)
            # `sys.stdout` is another one while a script runs again.
            print(_as_text(verdict), file=sys.__stdout__, flush=True)
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
    return "\n".join([f"{verdict.result:<8} {verdict.subject}", *details])


def main() -> None:
    """Runs one worker that `fastnet check` started."""
    seconds, file, *script = sys.argv[1:]
    try:
        rank, code = check_cluster(script, float(seconds))
        answer = str(code) if rank == 0 else ""
    except UsageError as error:
        answer = f"2\n{error}"
    if answer:
        Path(file).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
