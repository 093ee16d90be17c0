"""Ready-made settings from published large-batch trainings."""

from keras_fastnet.recipes.published import RECIPES
from keras_fastnet.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe"]
