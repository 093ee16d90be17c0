"""One worker of `fastnet check`.

`fastnet check` starts it as `python -m keras_fastnet.checks.worker FILE SCRIPT
[ARGUMENT …]`. Rank 0 writes the exit code to FILE; a worker that gets a `UsageError`
writes 2 and its text.
"""

import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_fastnet.checks import check
from keras_fastnet.checks.script import subject_of_script
from keras_fastnet.errors import UsageError

_EXIT_CODES = {"note": 0, "pass": 0, "fail": 1, "refused": 3}
_WIDTH = 88


def check_cluster(words: Sequence[str]) -> tuple[int, int]:
    """Checks the model of a script on the cluster of this process; rank 0 prints.

    Args:
        words: The training script and its arguments.

    Returns:
        The worker's rank and the exit code.

    Raises:
        UsageError: If the script has no `fit` to check.
    """
    strategy, subject = subject_of_script(words[0], words[1:])
    shows = strategy.rank == 0
    # TensorFlow warns of the traces of several models, Keras of data that end early on
    # purpose.
    tf.get_logger().setLevel("ERROR")
    warnings.filterwarnings("ignore", category=UserWarning, module="keras")
    if shows:
        print(f"{strategy.describe()}\n\nchecking {subject.name}:", flush=True)
    results: list[str] = []
    for name, result, details in check(strategy, subject):
        results.append(result)
        if shows:
            text = textwrap.indent(textwrap.fill(details, _WIDTH - 9), " " * 9)
            print(f"{result:<8} {name}\n{text}", flush=True)
    if shows:
        kinds = ("pass", "fail", "refused")
        print(f"\n{', '.join(f'{results.count(k)} {k}' for k in kinds)}", flush=True)
    worst = "fail" if "fail" in results else max(results, key=_EXIT_CODES.__getitem__)
    return strategy.rank, _EXIT_CODES[worst]


def main() -> None:
    """Runs one worker that `fastnet check` started."""
    file, *words = sys.argv[1:]
    try:
        rank, code = check_cluster(words)
        answer = str(code) if rank == 0 else ""
    except UsageError as error:
        answer = f"2\n{error}"
    if answer:
        Path(file).write_text(answer, encoding="utf-8")


if __name__ == "__main__":
    main()
