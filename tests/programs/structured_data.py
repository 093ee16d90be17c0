"""A table of numbers and words: preprocessing layers that adapt to the data."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def table(count, seed):
    generator = np.random.default_rng(seed)
    age = generator.integers(20, 80, count).astype("float64")
    pressure = generator.normal(130, 15, count)
    pain = generator.integers(0, 4, count)
    thal = generator.choice(["fixed", "normal", "reversible"], count)
    target = (age / 60 + pressure / 130 + (thal == "fixed") > 2.2).astype("int64")
    columns = {"age": age, "pressure": pressure, "pain": pain, "thal": thal}
    return tf.data.Dataset.from_tensor_slices((columns, target))


def train(strategy, folder):
    training = table(40, 0).shuffle(40, seed=2, reshuffle_each_iteration=False).batch(7)
    validation = table(12, 1).batch(7)
    with strategy.scope():
        encoders = {
            "age": (layers.Normalization(), None),
            "pressure": (layers.Normalization(), None),
            "pain": (layers.IntegerLookup(output_mode="multi_hot"), "int64"),
            "thal": (layers.StringLookup(output_mode="multi_hot"), "string"),
        }
        inputs, encoded = {}, []
        for name, (encoder, dtype) in encoders.items():
            inputs[name] = keras.Input((1,), name=name, dtype=dtype)
            column = training.map(lambda x, y, name=name: x[name])
            encoder.adapt(column.map(lambda x: tf.expand_dims(x, -1)))
            encoded.append(encoder(inputs[name]))
        features = layers.concatenate(encoded)
        h = layers.Dense(8, activation="relu")(features)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(h))
        model.compile(
            optimizer=keras.optimizers.SGD(0.2),
            loss="binary_crossentropy",
            metrics=["accuracy", keras.metrics.AUC(name="auc")],
        )
    history = model.fit(
        training, epochs=3, validation_data=validation, verbose=0
    ).history
    return {"history": history, "evaluate": model.evaluate(validation, verbose=0)}
