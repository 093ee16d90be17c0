"""Workers that differ in one thing: refused by name, or trained right."""

import numpy as np
import pytest

from tests.distributed.differing_jobs import kinds

# What the message names, where that is not the name of the difference.
NAMES = {
    "regularizer": "kernel_regularizer",
    "initializer": "kernel_initializer",
    "frozen layer": "trainable",
    "layer's dtype": "dtype",
    "dropout": "rate",
    "layer's class": "GaussianNoise",
    "a layer with a seed less": "seed_generator_state",
    "a layer more": "Dense on rank 1",
    "schedule": "the making of a variable",
    "accumulation in Keras": "gradient_accumulation_steps",
    "LARS": "optimizer",
    "LargeBatchOptimizer": "the making of a variable",
    "loss scaling": "the making of a variable",
    "loss's reduction": "loss",
    "loss_weights": "loss weights",
    "weighted_metrics": "weighted metrics",
    "steps_per_execution": "steps per execution",
    "run_eagerly": "run eagerly",
    "jit_compile": "jit compile",
    "number of examples": "shape",
    "dtype of data": "float64",
    "order of data": "different first batches",
    "a dataset": "batch_size",
    "an infinite dataset": "batch_size",
    "no data": "shape",
    "BackupAndRestore": "callbacks",
    "LearningRateWarmup": "callbacks",
    "TrustRatioMonitor": "callbacks",
    "ReduceLROnPlateau": "callbacks",
    "LearningRateScheduler": "callbacks",
    "EarlyStopping": "callbacks",
    "TerminateOnNaN": "callbacks",
    "evaluate for fit": "call",
    "evaluate first": "call",
    "predict of other batches": "batch_size",
    "evaluate in a callback": "the beginning of `evaluate`",
    "learning rate in a callback": "learning_rate: norm 0.05",
    "weights in a callback": "at the end of epoch 1: sequential/dense/kernel: norm",
    "weights after a fit": "sequential/dense/kernel: norm",
    "weights before evaluate": "first step of `evaluate`: sequential/dense/kernel",
    "length of a dataset": "batches",
    "shape of a dataset": "of",
    "sharding policy": "its own",
    "warm-up": "callbacks",
    "decay": "decay_steps",
    "trust coefficient": "trust_coefficient",
    "examples of evaluate": "shape",
}
ALLOWED = {
    # Of a number all workers get the chief's, as of every variable's first value.
    "learning_rate",
    "verbose",
    "names of layers",
    "a callback that watches",
    "ThroughputMonitor",
    "a list for an array",
    "own data of unequal length",
}


@pytest.mark.parametrize(
    "cluster", ["two_workers", pytest.param("two_mpi", marks=pytest.mark.slow)]
)
def test_differing_workers(request, cluster):
    """Each difference is refused on all workers by name, or training is right."""
    pool = request.getfixturevalue(cluster)
    ((_, undisturbed), _) = pool.run("train_differing", kind=None)
    wrong = {}
    for kind in kinds():
        outcomes = pool.run("train_differing", kind=kind)
        told = {outcome for outcome, _ in outcomes}
        if kind in ALLOWED:
            fits = told == {"trained"} and all(
                np.array_equal(mine, theirs)
                for mine, theirs in zip(outcomes[0][1], outcomes[1][1], strict=True)
            )
            if fits and "unequal" not in kind:
                fits = all(map(np.array_equal, outcomes[0][1], undisturbed))
        else:
            fits = told == {"refused"} and all(
                NAMES.get(kind, kind) in str(text) for _, text in outcomes
            )
        if not fits:
            wrong[kind] = outcomes
    assert not wrong, "\n".join(f"{kind}: {told}" for kind, told in wrong.items())
