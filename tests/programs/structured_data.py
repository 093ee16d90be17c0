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


def numerical(values, name, dataset):
    normalizer = layers.Normalization()
    feature = dataset.map(lambda x, y: x[name]).map(lambda x: tf.expand_dims(x, -1))
    normalizer.adapt(feature)
    return normalizer(values)


def categorical(values, name, dataset, is_string):
    kind = layers.StringLookup if is_string else layers.IntegerLookup
    lookup = kind(output_mode="multi_hot")
    feature = dataset.map(lambda x, y: x[name]).map(lambda x: tf.expand_dims(x, -1))
    lookup.adapt(feature)
    return lookup(values)


def train(strategy, folder):
    training = table(40, 0).shuffle(40, seed=2, reshuffle_each_iteration=False).batch(7)
    validation = table(12, 1).batch(7)
    with strategy.scope():
        inputs = {
            "age": keras.Input((1,), name="age"),
            "pressure": keras.Input((1,), name="pressure"),
            "pain": keras.Input((1,), name="pain", dtype="int64"),
            "thal": keras.Input((1,), name="thal", dtype="string"),
        }
        features = layers.concatenate(
            [
                numerical(inputs["age"], "age", training),
                numerical(inputs["pressure"], "pressure", training),
                categorical(inputs["pain"], "pain", training, is_string=False),
                categorical(inputs["thal"], "thal", training, is_string=True),
            ]
        )
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
