"""A custom training loop: `strategy.run`, distributed datasets and a checkpoint."""

import pathlib

import keras
import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 8


def images(count, seed=0):
    """Returns grey images in [0, 1] and classes, given by a bright bar's position."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count)
    pixels = 0.3 * generator.random((count, 8, 8, 1))
    for image, label in zip(pixels, labels, strict=True):
        image[label * 2, :, 0] += 0.7
    return pixels, labels


def network():
    regularizer = keras.regularizers.L2(1e-3)
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(
                4, 3, activation="relu", kernel_regularizer=regularizer
            ),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu", kernel_regularizer=regularizer),
            keras.layers.Dense(4, kernel_regularizer=regularizer),
        ]
    )


def train(strategy, folder):
    training = tf.data.Dataset.from_tensor_slices(images(36))
    training = training.shuffle(64, seed=3, reshuffle_each_iteration=False).batch(
        GLOBAL_BATCH
    )
    testing = tf.data.Dataset.from_tensor_slices(images(12, seed=1))
    testing = testing.batch(GLOBAL_BATCH)
    training = strategy.experimental_distribute_dataset(training)
    testing = strategy.experimental_distribute_dataset(testing)

    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )

        def compute_loss(labels, predictions, model_losses):
            losses = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH)
            return loss + tf.nn.scale_regularization_loss(tf.add_n(model_losses))

        test_loss = keras.metrics.Mean(name="test_loss")
        train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        test_accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
        model = network()
        optimizer = keras.optimizers.SGD(0.1)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)

    def train_step(inputs):
        pictures, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(pictures, training=True)
            loss = compute_loss(labels, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        train_accuracy.update_state(labels, predictions)
        return loss

    def test_step(inputs):
        pictures, labels = inputs
        predictions = model(pictures, training=False)
        test_loss.update_state(loss_object(labels, predictions))
        test_accuracy.update_state(labels, predictions)

    @tf.function
    def distributed_train_step(inputs):
        losses = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def distributed_test_step(inputs):
        return strategy.run(test_step, args=(inputs,))

    history = {"loss": [], "accuracy": [], "test_loss": [], "test_accuracy": []}
    for _ in range(3):
        total, batches = 0.0, 0
        for batch in training:
            total += distributed_train_step(batch)
            batches += 1
        for batch in testing:
            distributed_test_step(batch)
        history["loss"].append(float(total / batches))
        history["accuracy"].append(float(train_accuracy.result()))
        history["test_loss"].append(float(test_loss.result()))
        history["test_accuracy"].append(float(test_accuracy.result()))
        test_loss.reset_state()
        train_accuracy.reset_state()
        test_accuracy.reset_state()
    checkpoint.save(str(pathlib.Path(folder, "checkpoint")))

    restored = keras.metrics.SparseCategoricalAccuracy(name="restored")
    alone, unused = network(), keras.optimizers.SGD()
    tf.train.Checkpoint(optimizer=unused, model=alone).restore(
        tf.train.latest_checkpoint(folder)
    ).expect_partial()
    pictures, labels = images(12, seed=1)
    restored.update_state(labels, alone(pictures, training=False))
    return {"history": history, "restored": float(restored.result())}
