"""The examples in the docstrings run."""

import doctest
import importlib

import pytest

MODULES = (
    "optimizers.large_batch_optimizer",
    "optimizers.lars",
    "models",
    "optimizers.trust_ratio",
    "recipes.recipe",
    "schedules",
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"keras_fastnet.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
