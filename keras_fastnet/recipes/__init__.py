"""Ready-made settings from published large-batch training runs."""

from keras_fastnet.recipes.published import RECIPES
from keras_fastnet.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe"]
