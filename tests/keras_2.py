"""The tests that run with Keras 2 (`make test-legacy`), and those that are left out."""

from pathlib import Path

COVERED = (
    "test_backup_and_restore",
    "test_backup_identity",
    "test_batch_growth",
    "test_callbacks_together",
    "test_data_order",
    "test_early_shares",
    "test_epoch_data",
    "test_exclusions",
    "test_global_batch",
    "test_keras_choice",
    "test_large_batch_optimizer",
    "test_lars",
    "test_lars_algorithm",
    "test_lars_fit",
    "test_legacy_optimizers",
    "test_momentum_correction",
    "test_official",
    "test_recipes",
    "test_run_command",
    "test_schedules",
    "test_throughput_monitor",
    "test_torus_strategy",
    "test_trust_ratio",
    "test_trust_ratio_monitor",
    "test_upstream",
    "test_ways",
)
"""Modules whose tests have the marker `keras2`."""

_OTHERS_DO = "an option of Keras 3: LargeBatchOptimizer does it on both"
_PATHS = "names of Keras 3's variables"
LEFT_OUT = {
    "test_lars_algorithm": {
        "test_callable_rate": "Keras 2 has no such rates",
        "test_sparse_gradients_sum_duplicates[loss_scale_factor]": _OTHERS_DO,
        "test_gradient_accumulation_updates_with_the_mean": _OTHERS_DO,
    },
    "test_exclusions": {
        "test_table_agrees_with_updates": _PATHS,
        "test_table_excludes_biases_and_batch_normalization": _PATHS,
        "test_describe_takes_tensorflow_variables": _PATHS,
        "test_saving_keeps_treatments[image_model-fu": _PATHS,
        "test_saving_keeps_treatments[attention_model-fu": _PATHS,
    },
    "test_lars": {
        "test_config_round_trip": _OTHERS_DO,
        "test_float16_and_bfloat16_weights_compute_in_float32": (
            "reads Keras 3's variables"
        ),
        "test_variable_without_gradient_is_unchanged": "warns through a logger",
        "test_buffers_have_keras_names": _PATHS,
        "test_building_twice_keeps_buffers": "counts Keras 3's variables",
        "test_invalid_arguments_raise[{'learning_rate'": "Keras 2's own error",
        "test_invalid_arguments_raise[{'eta'": "Keras 2's own error",
    },
    "test_lars_fit": {
        "test_sparse_gradients_in_fit[option2": _OTHERS_DO,
        "test_sparse_gradients_with_accumulation": _OTHERS_DO,
        "test_accumulation_equals_one_large_batch": _OTHERS_DO,
        "test_moving_average_of_weights": (
            "the average of Keras 2 begins with the weights before the first update"
        ),
        "test_mixed_precision": _OTHERS_DO,
        "test_dynamic_loss_scaling": _OTHERS_DO,
        "test_training_after_loading_is_bit_equal[average": _OTHERS_DO,
    },
    "test_large_batch_optimizer": {
        "test_invalid_arguments_raise[<lambda>-ValueError-pass `accum": _OTHERS_DO,
        "test_invalid_arguments_raise[<lambda>-ValueError-`loss_scal": _OTHERS_DO,
    },
    "test_schedules": {
        "test_deprecated_schedule_sets_the_rate_of_an_optimizer": (
            "`learning_rate` of Keras 2 is that of the update before"
        ),
        "test_deprecated_schedule_is_loaded": "the file is one of Keras 3",
        "test_model_file_with_the_deprecated_schedule": "the file is one of Keras 3",
    },
    "test_batch_growth": {
        "test_growth_equals_separate_fits[2-as_unknown_length": (
            "Keras 2 refuses unknown lengths with several steps an execution"
        ),
    },
    "test_backup_identity": {
        "test_training_that_differs[other targets]": (
            "examples of arrays are known with Keras 3 only"
        ),
    },
    "test_torus_strategy": {
        "test_a_saved_model_continues_training_identically": (
            "Keras 2 does not save `synchronized=True`"
        ),
        "test_moving_statistics_are_weighed_by_examples": (
            "fused batch normalization of Keras 2 keeps the unbiased variance"
        ),
        "test_overflow_on_one_replica": _OTHERS_DO,
        "test_unsupported_fits_raise_before_a_step[no batch": "Keras 2's own error",
        "test_replica_0_draws_the_random_numbers_of_one_device": (
            "Keras 2 seeds an operation by its place in the graph"
        ),
    },
    "test_trust_ratio_monitor": {
        "test_means_equal_numpy": _PATHS,
        "test_training_without_the_monitor_records_nothing": _PATHS,
        "test_skipped_updates_are_left_out": _PATHS,
        "test_tensorboard_writes_every_log": _PATHS,
    },
}
"""By module, how the names of tests begin that do not run with Keras 2, and why."""


def reason_to_leave_out(node: str) -> str | None:
    """Returns why a test does not run with Keras 2; `None` where it does."""
    path, _, test = node.partition("::")
    left_out = LEFT_OUT.get(Path(path).stem, {})
    return next(
        (reason for name, reason in left_out.items() if test.startswith(name)), None
    )
