"""Ready-made settings from published large-batch trainings."""

from keras_fastnet.recipes.published import (
    RECIPES,
    berkeley2017,
    berkeley2017_alexnet,
    facebook2017,
    google2021,
    ibm2017,
    mlperf,
    sony2018,
)
from keras_fastnet.recipes.recipe import Recipe

__all__ = [
    "RECIPES",
    "Recipe",
    "berkeley2017",
    "berkeley2017_alexnet",
    "facebook2017",
    "google2021",
    "ibm2017",
    "mlperf",
    "sony2018",
]
