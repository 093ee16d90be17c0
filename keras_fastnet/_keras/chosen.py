"""What adapts the chosen Keras: the same names from `keras2` or from `keras3`.

What the two must offer is what the rest of the package imports from here; the modules
stand beside each other, with the same functions.
"""

from typing import TYPE_CHECKING

from keras_fastnet._keras.keras_api import IS_KERAS_2

if TYPE_CHECKING or not IS_KERAS_2:
    from keras_fastnet._keras.keras3 import (
        compiling,
        data_hooks,
        models,
        optimizers,
        saving_hooks,
        step_hooks,
        values,
    )
else:
    from keras_fastnet._keras.keras2 import (
        compiling,
        data_hooks,
        models,
        optimizers,
        saving_hooks,
        step_hooks,
        values,
    )

__all__ = [
    "compiling",
    "data_hooks",
    "models",
    "optimizers",
    "saving_hooks",
    "step_hooks",
    "values",
]
