"""LARS written from the paper with `keras.ops`, for comparison."""

import keras
from keras import ops


class NaiveLARS(keras.optimizers.Optimizer):
    """Algorithm 1 of arXiv 1708.03888, operation by operation."""

    def __init__(self, learning_rate=1.0, momentum=0.9, beta=1e-4, eta=0.001, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.beta = beta
        self.eta = eta

    def build(self, variables):
        super().build(variables)
        self.velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient, variable, learning_rate):
        velocity = self.velocities[self._get_variable_index(variable)]
        rate = ops.cast(learning_rate, variable.dtype)
        if len(variable.shape) > 1:
            w_norm = ops.sqrt(ops.sum(ops.square(variable)))
            g_norm = ops.sqrt(ops.sum(ops.square(gradient)))
            ratio = self.eta * w_norm / (g_norm + self.beta * w_norm)
            rate = rate * ops.where((w_norm > 0) & (g_norm > 0), ratio, 1.0)
            gradient = gradient + self.beta * variable
        self.assign(velocity, self.momentum * velocity + rate * gradient)
        self.assign_sub(variable, velocity)
