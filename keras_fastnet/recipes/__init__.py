"""Ready-made settings from published large-batch trainings."""

from keras_fastnet.recipes.berkeley2017 import berkeley2017
from keras_fastnet.recipes.facebook2017 import facebook2017
from keras_fastnet.recipes.ibm2017 import ibm2017
from keras_fastnet.recipes.mlperf import mlperf
from keras_fastnet.recipes.recipe import Recipe
from keras_fastnet.recipes.sony2018 import sony2018

RECIPES = {
    function.__name__: function
    for function in (facebook2017, berkeley2017, ibm2017, sony2018, mlperf)
}
"""All recipes, by name."""

__all__ = [
    "RECIPES",
    "Recipe",
    "berkeley2017",
    "facebook2017",
    "ibm2017",
    "mlperf",
    "sony2018",
]
