"""Ends a training that each worker of a launch would do alone.

Several processes of a script without a strategy train a model each, on all data, and
succeed. In the workers of `fastnet run`, and nowhere else, this file is loaded before
the script, by its path. It imports neither TensorFlow nor Keras, nor anything of this
package.
"""

import functools
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TRAINER = "keras.src.backend.tensorflow.trainer"
_SCOPES = "keras_fastnet._keras.scopes"
# The environment variable that allows it.
INDEPENDENT = "FASTNET_INDEPENDENT"


def watch(source: str) -> None:
    """Refuses, from now on, to train a model without a strategy.

    Args:
        source: By whom several workers were started, for the message.
    """
    if os.environ.get(INDEPENDENT):
        return
    sys.meta_path.insert(0, _Finder(source))


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps Keras's trainer when the script imports it."""

    def __init__(self, source: str):
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            _wrap(module, self._source)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(trainer: Any, source: str) -> None:
    # `fit` and `train_on_batch` call it; `evaluate` and `predict` do not.
    # Keras 3.16 renames it.
    kind = getattr(trainer, "TensorFlowTrainer", None) or trainer.Trainer
    original = kind.make_train_function

    @functools.wraps(original)
    def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse(model, source)
        return original(model, *args, **kwargs)

    kind.make_train_function = make_train_function


def _refuse(model: Any, source: str) -> None:
    scopes = sys.modules.get(_SCOPES)
    if scopes is not None and (scopes.STRATEGIES or scopes.may_train_alone()):
        return
    raise ValueError(
        "A script that several workers run must train in the scope of a strategy; "
        "otherwise each worker trains a model of its own. Received: training of "
        f"{model.name!r} without such a strategy, in one of several workers started by "
        f"{source}. Add these lines, and move the making of the model and `compile` "
        "under the last:\n\n"
        "    import keras_fastnet\n\n"
        "    strategy = keras_fastnet.TorusStrategy()  # at the start of the program\n"
        "    with strategy.scope():\n\n"
        "To train a separate model on each worker on purpose, train within `with "
        f"keras_fastnet.train_alone():`, or set {INDEPENDENT}=1."
    )
