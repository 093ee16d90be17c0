"""Small programs modelled on published ones, as their authors would write them.

Each module has a function `train(strategy, folder)`, which uses nothing of
keras_fastnet. `PUBLISHED` names the published program, `CHANGED` the differences from
it, and `TOLERANCE` the largest allowed relative difference between two workers and one
device. On one device the strategy is TensorFlow's default,
`tf.distribute.get_strategy()`, whose scope changes nothing.
"""

PROGRAMS = (
    "ctc_endpoint",
    "custom_loop",
    "custom_train_step",
    "gan",
    "image_folder",
    "masked_language_model",
    "multi_worker_keras",
    "structured_data",
)
