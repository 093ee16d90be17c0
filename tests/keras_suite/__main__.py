"""Runs Keras's own tests under `TorusStrategy` and compares them with plain Keras.

`python -m tests.keras_suite --help` lists the options; `make test-keras` runs all of
it. The tests are those of the installed Keras. docs/keras_tests.md explains the counts.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

from tests.keras_suite.comparison import Comparison, Outcomes, read_known
from tests.keras_suite.plugin import MODES

_HERE = pathlib.Path(__file__).parent
_REPOSITORY = _HERE.parents[1]
_DOCS = _REPOSITORY / "docs" / "keras_tests.md"
_BEGIN, _END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

GROUPS = {
    "trainer": ("trainers/trainer_test.py",),
    "compile_utils, epoch iterator": (
        "trainers/compile_utils_test.py",
        "trainers/epoch_iterator_test.py",
    ),
    "data adapters": ("trainers/data_adapters/*_test.py",),
    "callbacks": ("callbacks/*_test.py",),
    "optimizers": ("optimizers/*_test.py", "optimizers/schedules/*_test.py"),
    "tf.distribute": (
        "backend/tensorflow/distribute_test.py",
        "backend/tensorflow/optimizer_distribute_test.py",
    ),
    "losses": ("losses/*_test.py",),
    "metrics": ("metrics/*_test.py",),
    "models": ("models/*_test.py",),
    "saving": ("saving/*_test.py",),
    "normalization layers": ("layers/normalization/*_test.py",),
    "regularization layers": ("layers/regularization/*_test.py",),
}
"""Patterns of the files of Keras's tests, below `keras/src`, by group."""

SMOKE = (
    "trainers/trainer_test.py",
    "trainers/compile_utils_test.py",
    "trainers/epoch_iterator_test.py",
    "backend/tensorflow/distribute_test.py",
    "backend/tensorflow/optimizer_distribute_test.py",
    "callbacks/backup_and_restore_test.py",
    "callbacks/early_stopping_test.py",
    "callbacks/swap_ema_weights_test.py",
    "optimizers/loss_scale_optimizer_test.py",
    "layers/normalization/batch_normalization_test.py",
)
"""The files of a run with `--smoke`."""

# One of three variants of most tests: `jit_compile=True` has no effect on several
# replicas, and tests/equality has eager fits and data of unknown size.
_SMOKE_CHOICE = (
    "-k",
    "not _eager and not unknown_data and (not _jit or _non_jit) or predict",
)

# The trainer's tests take longer than all others of a run with `--smoke`.
_PARTS = {"trainer": 2}

# Seconds after which a process is ended and a new one runs the remaining tests.
_PROCESS_LIMIT = 1800


def main() -> int:
    """Returns 0 if the list of known failures is exactly right."""
    options = _arguments()
    source = pathlib.Path(metadata.distribution("keras").locate_file("keras/src"))
    known = read_known(_HERE / "known.json")
    files = {
        group: [f for pattern in patterns for f in _files(source, pattern, options)]
        for group, patterns in GROUPS.items()
    }
    choice = _SMOKE_CHOICE if options.smoke else ()
    run = _Run(source, options.processes, options.results, choice)
    if options.smoke:
        outcomes = run.modes(files, ("two",))
        comparison = Comparison(outcomes, known)
        # Plain Keras runs only the tests that failed.
        outcomes["plain"] = run.tests(
            "plain-again", "plain", comparison.failed_unlisted()
        )
    else:
        modes = MODES if options.mirrored else MODES[:-1]
        comparison = Comparison(run.modes(files, modes), known)
        table = comparison.table(files)
        print(table)
        if options.write_docs:
            _write_docs(table)
    problems = comparison.problems()
    for problem in problems:
        print(problem)
    if problems or options.results:
        print(f"Texts of all failures: {run.folder}")
    else:
        shutil.rmtree(run.folder)
    # In the format of pytest; failures that are in the list are in neither number.
    print(f"{comparison.passed} passed, {len(problems)} failed")
    return 1 if problems or not comparison.passed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.keras_suite")
    for flag, text in (
        ("--smoke", "run a subset; plain Keras runs only the tests that failed"),
        ("--mirrored", "also run under MirroredStrategy"),
        ("--write-docs", "write the table to docs/keras_tests.md"),
    ):
        parser.add_argument(flag, action="store_true", help=text)
    text = "processes at a time (default: %(default)d)"
    parser.add_argument("--processes", type=int, default=2, help=text)
    parser.add_argument("--results", type=pathlib.Path, help="folder for the results")
    parser.add_argument(
        "files", nargs="*", help="run only files whose path contains this text"
    )
    return parser.parse_args()


def _files(
    source: pathlib.Path, pattern: str, options: argparse.Namespace
) -> list[str]:
    found = sorted(str(path.relative_to(source)) for path in source.glob(pattern))
    if options.smoke:
        found = [file for file in found if file in SMOKE]
    if options.files:
        found = [file for file in found if any(part in file for part in options.files)]
    return found


def _write_docs(table: str) -> None:
    before, rest = _DOCS.read_text().split(_BEGIN)
    after = rest.split(_END)[1]
    keras, tensorflow = map(metadata.version, ("keras", "tensorflow"))
    versions = f"Keras {keras}, TensorFlow {tensorflow}"
    _DOCS.write_text(f"{before}{_BEGIN}{versions}\n\n{table}\n{_END}{after}")


class _Run:
    """Runs tests of `source` that words choose, in a number of processes at a time."""

    def __init__(
        self,
        source: pathlib.Path,
        processes: int,
        folder: pathlib.Path | None,
        choice: tuple[str, ...],
    ):
        self.folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="keras-suite-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._source = source
        self._processes = processes
        self._choice = choice

    def modes(
        self, files: dict[str, list[str]], modes: tuple[str, ...]
    ) -> dict[str, Outcomes]:
        """Runs the files of each group; returns the outcomes by mode."""
        parts = [
            (group, (f"--keras-part={part}", f"--keras-parts={_PARTS.get(name, 1)}"))
            for name, group in files.items()
            if group
            for part in range(_PARTS.get(name, 1))
        ]
        outcomes = {mode: Outcomes() for mode in modes}
        with ThreadPoolExecutor(self._processes) as pool:
            runs = [
                (mode, pool.submit(self.tests, f"{mode}-{number}", mode, group, words))
                for number, (group, words) in enumerate(parts)
                for mode in modes
            ]
            for mode, run in runs:
                outcomes[mode].update(run.result())
        return outcomes

    def tests(
        self, name: str, mode: str, tests: list[str], part: tuple[str, ...] = ()
    ) -> Outcomes:
        """Runs files or tests; if a test ends its process, a new one continues."""
        results = self.folder / f"{name}.jsonl"
        results.unlink(missing_ok=True)
        done = self.folder / f"{name}.done"
        outcomes = Outcomes()
        while tests:
            done.write_text("\n".join(outcomes.texts))
            began = len(outcomes.texts)
            words = ["--keras-mode", mode, "--keras-results", results]
            words += ["--keras-skip", done, *self._choice, *part]
            words += [self._source / test for test in tests]
            ended = self._pytest(name, words)
            records = results.read_text().splitlines() if results.exists() else []
            outcomes.read([json.loads(line) for line in records])
            # Passed, failed, import errors, no tests left.
            if ended in (0, 1, 2, 5) and not outcomes.unfinished:
                return outcomes
            print(f"{name}: process ended with {ended}: {outcomes.unfinished}")
            outcomes.give_up_unfinished(f"its process ended with status {ended}")
            if len(outcomes.texts) == began:
                raise RuntimeError(
                    f"pytest must run tests. Received: none, for {tests}. Look at "
                    f"{self.folder / name}.log."
                )
        return outcomes

    def _pytest(self, name: str, words: list[str | pathlib.Path]) -> int:
        path = os.environ.get("PYTHONPATH", "")
        with (self.folder / f"{name}.log").open("a") as log:
            try:
                return subprocess.run(
                    [
                        *(sys.executable, "-m", "pytest"),
                        *("-c", _HERE / "pytest.ini"),
                        f"--rootdir={self._source.parents[1]}",
                        *("-p", "tests.keras_suite.plugin", *words),
                    ],
                    cwd=self.folder,
                    env={
                        **os.environ,
                        "PYTHONPATH": f"{_REPOSITORY}{os.pathsep}{path}",
                        "KERAS_BACKEND": "tensorflow",
                        "KERAS_HOME": str(self.folder / "keras"),
                        "CUDA_VISIBLE_DEVICES": "",
                        "TF_CPP_MIN_LOG_LEVEL": "2",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=_PROCESS_LIMIT,
                ).returncode
            except subprocess.TimeoutExpired:
                return 124


if __name__ == "__main__":
    sys.exit(main())
