"""Small programs modelled on published ones, as their authors would write them.

Each module has a function `train(strategy, folder)`, which uses nothing of
keras_fastnet; docs/programs.md names the published ones. On one device the strategy is
TensorFlow's default, `tf.distribute.get_strategy()`, whose scope changes nothing.
"""

TOLERANCE = 1e-9
"""The largest allowed relative difference between two workers and one device."""

PROGRAMS = (
    "custom_loop",
    "custom_train_step",
    "masked_language_model",
    "structured_data",
)
