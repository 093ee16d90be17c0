"""A student learns from a teacher: a custom `compute_loss`."""

import keras
from keras import layers, ops

from tests.programs.made_data import images

PUBLISHED = "keras.io/examples/vision/knowledge_distillation"
CHANGED = ""
TOLERANCE = 1e-9


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student = student
        self.teacher = teacher

    def compile(
        self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha, heat
    ):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.heat = heat

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False
    ):
        soft = ops.softmax(self.teacher(x, training=False) / self.heat, axis=1)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            soft, ops.softmax(y_pred / self.heat, axis=1)
        ) * (self.heat**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def network(name, filters):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(filters, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.Flatten(),
            layers.Dense(4),
        ],
        name=name,
    )


def train(strategy, folder):
    x, y = images(36)
    x_test, y_test = images(11, seed=1)
    with strategy.scope():
        teacher = network("teacher", 8)
        student = network("student", 2)
        teacher.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        distiller = Distiller(student=student, teacher=teacher)
        distiller.compile(
            optimizer=keras.optimizers.SGD(0.1),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=keras.losses.SparseCategoricalCrossentropy(
                from_logits=True
            ),
            distillation_loss_fn=keras.losses.KLDivergence(),
            alpha=0.1,
            heat=10,
        )
    options = {"batch_size": 7, "shuffle": False, "verbose": 0}
    taught = teacher.fit(x, y, epochs=2, **options).history
    history = distiller.fit(
        x, y, epochs=3, validation_data=(x_test, y_test), **options
    ).history
    return {
        "teacher": taught,
        "history": history,
        "evaluate": distiller.evaluate(x_test, y_test, batch_size=7, verbose=0),
    }
