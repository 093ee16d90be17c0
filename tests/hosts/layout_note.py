"""A callback that tells a test how the ranks stand during `fit`."""

import json
from pathlib import Path

import keras


class LayoutNote(keras.callbacks.Callback):
    """Writes the strategy's grid and description to a file of each rank.

    Args:
        folder: Where to write `RANK.json`.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = folder

    def on_train_begin(self, logs=None):
        strategy = self.model.distribute_strategy
        note = {
            "grid": [strategy.grid.rows, strategy.grid.columns],
            "description": strategy.describe(),
        }
        (self._folder / f"{strategy.rank}.json").write_text(json.dumps(note))
