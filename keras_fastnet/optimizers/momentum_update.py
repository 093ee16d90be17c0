"""In-place update of one tensor by momentum with weight decay.

    v = m v + rate (g + beta w)
    w = w - v                              plain
    w = w - (m v + rate (g + beta w))      Nesterov

As in Keras's SGD, the buffer holds -v, so that the new weight is `w + buffer`.
"""

import tensorflow as tf


def momentum_update(
    variable: tf.Variable,
    buffer: tf.Variable | None,
    gradient: tf.Tensor,
    *,
    rate: tf.Tensor,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
) -> None:
    """Updates `variable` and `buffer` once.

    Args:
        variable: The weight.
        buffer: The momentum buffer, of the shape and dtype of `variable`; `None` if
            `momentum` is 0.
        gradient: The dense gradient, in the dtype to compute in.
        rate: The scalar that multiplies `g + beta w`, in the gradient's dtype.
        momentum: The paper's m.
        weight_decay: The paper's beta.
        nesterov: Whether to use Nesterov momentum.
    """
    if gradient.dtype == variable.dtype:
        update = _update_in_place
    else:
        # float16 and bfloat16 weights: rate times gradient would underflow.
        update = _update_in_wider_dtype
    update(variable, buffer, gradient, rate, momentum, weight_decay, nesterov)


def _update_in_place(
    variable, buffer, gradient, rate, momentum, weight_decay, nesterov
):
    # Fused kernels, which touch every byte once. With separate additions and
    # multiplications the update takes 1.5 times as long, because of the memory traffic
    # of temporaries (benchmarks/optimizer_update).
    if weight_decay:
        weight = variable.read_value()
        if buffer is None or nesterov:
            gradient = gradient + weight_decay * weight
        else:
            # Avoids that temporary. The kernel below computes m buffer - rate g, so the
            # decay that is subtracted here is divided by the m that multiplies it
            # there.
            _subtract(buffer, rate * (weight_decay / momentum), weight)

    if buffer is None:
        _subtract(variable, rate, gradient)
        return
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=buffer.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.constant(momentum, gradient.dtype),
        use_nesterov=nesterov,
    )


def _subtract(variable, scale, value):
    tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=scale, delta=value
    )


def _update_in_wider_dtype(
    variable, buffer, gradient, rate, momentum, weight_decay, nesterov
):
    weight = tf.cast(variable, gradient.dtype)
    step = -rate * (gradient + weight_decay * weight)
    if buffer is not None:
        moved = momentum * tf.cast(buffer, gradient.dtype) + step
        buffer.assign(tf.cast(moved, buffer.dtype))
        step = momentum * moved + step if nesterov else moved
    variable.assign(tf.cast(weight + step, variable.dtype))
