"""The Keras that the package uses, and its errors for the other."""

import importlib.util
import re

import pytest

from keras_fastnet._keras import keras_api
from keras_fastnet._keras.keras_api import IS_KERAS_2, keras
from tests.documentation import ROOT

OTHER = "keras" if keras.__name__ == "tf_keras" else "tf_keras"
needs_both = pytest.mark.skipif(
    importlib.util.find_spec(OTHER) is None or (IS_KERAS_2 and OTHER == "tf_keras"),
    reason="needs Keras 3 and tf_keras",
)
pytestmark = pytest.mark.landing

MODEL = f"""
import {OTHER} as other
import keras_fastnet as fastnet
model = other.Sequential([other.layers.Input((2,)), other.layers.Dense(1)])
"""


@pytest.fixture
def errors_of(python):
    """Runs a program with this process's Keras; returns what it writes to stderr."""
    asked = "1" if keras.__name__ == "tf_keras" else ""
    return lambda program: python("-c", program, TF_USE_LEGACY_KERAS=asked).stderr


def test_it_is_that_of_tensorflow(errors_of):
    program = (
        "import tensorflow as tf, keras_fastnet\n"
        "assert tf.keras.layers.Dense is keras_fastnet.keras.layers.Dense"
    )
    assert "Error" not in errors_of(program)


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 has no other backend")
def test_another_backend_is_an_error(python):
    program = "import keras_fastnet; keras_fastnet.LARS"
    message = python("-c", program, KERAS_BACKEND="jax").stderr
    assert "needs Keras's TensorFlow backend. Received: the backend jax. Set" in message


@pytest.mark.slow
@needs_both
def test_a_strategy_refuses_to_train_it(errors_of):
    program = MODEL.replace("model =", "with fastnet.TorusStrategy().scope(): model =")
    program += (
        "    model.compile('sgd', 'mse')\n"
        "import numpy as np\n"
        "model.fit(np.ones((4, 2)), np.ones((4, 1)))\n"
    )
    message = errors_of(program.replace("\n    model", "\nmodel"))
    assert f"a model of {OTHER}" in message
    assert "trains models of one Keras package" in message


@pytest.mark.parametrize(
    ("tensorflow", "chosen"),
    [
        pytest.param("2.17.1", "3.12.0", marks=pytest.mark.slow),
        pytest.param("2.18.0", "3.5.0", marks=pytest.mark.slow),
        pytest.param("2.22.0", "3.15.0", marks=pytest.mark.slow),
        ("2.21.0", "3.17.0"),
    ],
)
def test_versions_that_do_not_go_together(errors_of, tensorflow, chosen):
    program = (
        f"import tensorflow, {keras.__name__} as chosen\n"
        f"tensorflow.__version__ = '{tensorflow}'\n"
        f"chosen.__version__ = '{chosen}'\n"
        "import keras_fastnet\n"
        "keras_fastnet.LARS\n"
    )
    message = errors_of(program)
    assert "Install one of these combinations" in message
    assert f"TensorFlow {tensorflow} with {keras.__name__} {chosen}" in message


@pytest.mark.parametrize(
    ("package", "newest"),
    [
        ("tensorflow", keras_api._NEWEST_TENSORFLOW),
        ("keras", keras_api._NEWEST_KERAS_3),
    ],
)
def test_pip_installs_no_newer_version(package, newest):
    text = (ROOT / "pyproject.toml").read_text()
    (bound,) = re.findall(rf'^    "{package}>=.*,<([0-9.]+)",$', text, re.M)
    assert bound == f"{newest[0]}.{newest[1] + 1}"
