"""A pytest plugin that runs Keras's own tests under a distribution strategy.

Loaded with `-p tests.keras_suite.plugin`. Every test runs inside the scope of the
strategy, from the `setUp` of Keras's `TestCase` to `tearDown`, so that everything it
creates is in the scope. Tests that create a strategy themselves run outside it.
"""

import contextlib
import inspect
import json
import pathlib
import re
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

MODES = ("plain", "one", "two", "mirrored")
"""No strategy; `TorusStrategy` of one CPU, of two; `MirroredStrategy` of two."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options that the command passes."""
    group = parser.getgroup("keras-suite")
    group.addoption("--keras-mode", choices=MODES, default="plain")
    group.addoption("--keras-results", type=pathlib.Path, help="file to append to")
    group.addoption("--keras-skip", type=pathlib.Path, help="file of test ids to skip")
    group.addoption("--keras-part", type=int, default=0, help="which tests, from 0")
    group.addoption("--keras-parts", type=int, default=1, help="number of parts")


def pytest_configure(config: pytest.Config) -> None:
    """Registers Keras's marks, divides the CPU and wraps Keras's `TestCase`."""
    for mark in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{mark}: of Keras's tests")
    _add_conftest()
    config.pluginmanager.register(_Suite(config.getoption("--keras-mode")), "suite")
    results = config.getoption("--keras-results")
    if results is not None:
        config.pluginmanager.register(_Recorder(results), "recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Keeps a part, omits tests that ran, puts those with their own strategies last.

    These reset TensorFlow's devices, which invalidates everything on them.
    """
    items[:] = items[
        config.getoption("--keras-part") :: config.getoption("--keras-parts")
    ]
    skip = config.getoption("--keras-skip")
    if skip is not None:
        ran = set(skip.read_text().split("\n"))
        items[:] = [item for item in items if short_id(item.nodeid) not in ran]
    items.sort(key=makes_strategy)


def _add_conftest() -> None:
    """Provides what some tests import from `conftest.py`, which the wheel lacks."""

    def skip_if_backend(given_backend: str, reason: str) -> pytest.MarkDecorator:
        return pytest.mark.skipif(given_backend == "tensorflow", reason=reason)

    conftest: Any = types.ModuleType("conftest")
    conftest.skip_if_backend = skip_if_backend
    sys.modules["conftest"] = conftest


def short_id(nodeid: str) -> str:
    """Returns a test's id with its file relative to `keras/src`."""
    return nodeid.rpartition("keras/src/")[2]


def makes_strategy(item: pytest.Item) -> bool:
    """Returns whether a test itself creates a strategy or divides the CPU."""
    parts = [getattr(item, "function", None)]
    if getattr(item, "cls", None) is not None:
        parts.append(vars(item.cls).get("setUp"))
    sources = [inspect.getsource(inspect.unwrap(part)) for part in parts if part]
    return bool(re.search(r"MirroredStrategy\(|_reset_context\(", "".join(sources)))


class _Suite:
    """Enters the strategy's scope around each test."""

    def __init__(self, mode: str):
        import tensorflow as tf

        self._mode = mode
        self._strategy: Any = None
        self._entered: contextlib.ExitStack | None = None
        if mode in ("two", "mirrored"):
            (cpu,) = tf.config.list_physical_devices("CPU")
            two = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
            tf.config.set_logical_device_configuration(cpu, two)
        if mode in ("one", "two"):
            import keras_fastnet

            self._strategy = keras_fastnet.TorusStrategy()
        elif mode == "mirrored":
            self._strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        self._wrap_set_up()

    def _wrap_set_up(self) -> None:
        """Makes Keras's `TestCase.setUp` enter the scope.

        `setUp` starts with `clear_session`, which replaces TensorFlow's default graph;
        a scope entered before that no longer applies to variables.
        """
        from keras.src.testing import test_case

        original = test_case.TestCase.setUp

        def set_up(case: Any) -> None:
            if self._entered is not None:
                # A test that calls `setUp` again.
                self._entered.close()
            original(case)
            if self._entered is not None:
                self._entered.enter_context(self._strategy.scope())

        test_case.TestCase.setUp = set_up

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Leaves the scope that `setUp` entered, also if the test fails."""
        if self._strategy is None:
            return (yield)
        if makes_strategy(item):
            with self._own_strategy():
                return (yield)
        with contextlib.ExitStack() as self._entered:
            try:
                return (yield)
            finally:
                entered = self._entered.pop_all()
                self._entered = None
                entered.close()

    @contextlib.contextmanager
    def _own_strategy(self) -> Iterator[None]:
        """Makes a test that creates a `MirroredStrategy` create a `TorusStrategy`.

        With one device it runs unchanged, with Keras's functions wrapped by
        keras_fastnet. Such tests also train models outside the scope, to compare.
        """
        if self._mode == "mirrored":
            yield
            return
        import keras_fastnet

        with keras_fastnet.train_alone(), contextlib.ExitStack() as stack:
            if self._mode == "two":
                stack.enter_context(_torus_for_mirrored())
            yield


@contextlib.contextmanager
def _torus_for_mirrored() -> Iterator[None]:
    import tensorflow as tf

    import keras_fastnet

    mirrored = tf.distribute.MirroredStrategy

    def make(devices: Any = None, *args: Any, **kwargs: Any) -> Any:
        if devices is not None and len(devices) == 1:
            return mirrored(devices, *args, **kwargs)
        return keras_fastnet.TorusStrategy()

    tf.distribute.MirroredStrategy = make
    try:
        yield
    finally:
        tf.distribute.MirroredStrategy = mirrored


class _Recorder:
    """Writes one line when a test begins, and one for its outcome."""

    def __init__(self, path: pathlib.Path):
        self._path = path

    def _write(self, **record: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Records that a test begins, in case it ends the process."""
        self._began = time.monotonic()
        self._write(id=short_id(nodeid), outcome="began")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records that a test passed, failed or was skipped."""
        if report.when != "call" and report.passed:
            return
        record = {"id": short_id(report.nodeid), "outcome": report.outcome}
        if report.failed:
            record["error"] = _error_of(report)
            record["text"] = report.longreprtext[-6000:]
        elif report.skipped:
            record["error"] = str(getattr(report.longrepr, "__getitem__", str)(-1))
        record["seconds"] = round(time.monotonic() - self._began, 2)
        self._write(**record)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Records files that cannot be imported, or that skip themselves."""
        if report.failed or report.skipped:
            error = _error_of(report) if report.failed else str(report.longrepr)
            record = {"id": short_id(report.nodeid), "error": error}
            self._write(**record, outcome=report.outcome)


def _error_of(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text[:2000]
