"""A time series: windows, early stopping and restoring the best weights."""

import os

import keras
import numpy as np

PUBLISHED = "keras.io/examples/timeseries/timeseries_weather_forecasting"
CHANGED = ""
TOLERANCE = 1e-9


def train(strategy, folder):
    generator = np.random.default_rng(0)
    time = np.arange(120)
    columns = [np.sin(time / 5), np.cos(time / 7), generator.normal(size=120)]
    features = np.stack(columns, 1)
    targets = np.roll(features[:, 0], -3)[:, None]

    def windows(first, last):
        return keras.utils.timeseries_dataset_from_array(
            features[first:last],
            targets[first:last],
            sequence_length=6,
            sampling_rate=2,
            batch_size=15,
        )

    training, validation = windows(0, 75), windows(75, 110)
    with strategy.scope():
        inputs = keras.layers.Input(shape=(6, 3))
        h = keras.layers.LSTM(4)(inputs)
        model = keras.Model(inputs=inputs, outputs=keras.layers.Dense(1)(h))
        model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse")
    path = os.path.join(folder, "model_checkpoint.weights.h5")
    history = model.fit(
        training,
        epochs=4,
        validation_data=validation,
        callbacks=[
            keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0, patience=2),
            keras.callbacks.ModelCheckpoint(
                monitor="val_loss",
                filepath=path,
                save_weights_only=True,
                save_best_only=True,
            ),
            keras.callbacks.ReduceLROnPlateau(
                monitor="loss", min_delta=1.0, patience=1
            ),
        ],
        verbose=0,
    ).history
    model.load_weights(path)
    return {"history": history, "evaluate": model.evaluate(validation, verbose=0)}
