"""Small programs modelled on published ones, as their authors would write them.

Each module has a function `train(strategy, folder)`, which uses nothing of
keras_fastnet; docs/programs.md names the published ones. On one device the strategy is
TensorFlow's default, `tf.distribute.get_strategy()`, whose scope changes nothing.
"""
