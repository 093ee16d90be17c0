"""The changes to Keras 2 and TensorFlow."""

import pytest

from keras_fastnet._keras import adapters as adapters  # Registers the changes.
from keras_fastnet._keras.wrapping import CHANGES
from tests.documentation import rows

pytestmark = pytest.mark.smoke
PROGRAM = """
import numpy as np
import keras_fastnet
from keras_fastnet import LARS, LargeBatchOptimizer, callbacks, keras
from keras_fastnet._keras.wrapping import CHANGES

def changed():
    functions = [vars(change.owner).get(change.name) for change in CHANGES]
    codes = [getattr(function, "__code__", None) for function in functions]
    return [code is not None and "keras_fastnet" in code.co_filename for code in codes]

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(LARS(1.0), "mse")
watching = [callbacks.LearningRateWarmup(1.0, 1), callbacks.ThroughputMonitor()]
model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=watching)
LargeBatchOptimizer(LARS(1.0)), callbacks.BatchGrowth({0: 8})
print(any(changed()))
keras_fastnet.TorusStrategy()
# A seed for datasets is for several workers only.
print(sum(changed()) >= len(CHANGES) - 1)
"""


def test_nothing_is_changed_before_a_strategy_exists(python):
    done = python("-c", PROGRAM)
    assert done.stdout.split()[-2:] == ["False", "True"], done.stderr


def test_the_changes_are_few():
    assert len(CHANGES) <= 12


def test_the_page_lists_all_changes():
    expected = {f"| `{c.path}` | {c.stock} | {c.until} |" for c in CHANGES}
    assert rows("docs/upstream.md", "## Keras 2") == expected
