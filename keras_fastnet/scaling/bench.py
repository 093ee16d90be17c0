"""Measures all-reduces and training steps, with local workers or on a cluster."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from keras_fastnet.cluster.environment import in_a_cluster, scheduler_ranks
from keras_fastnet.cluster.mpi import mpi_rank
from keras_fastnet.errors import ClusterError, UsageError
from keras_fastnet.launcher import launcher
from keras_fastnet.launcher.machine import visible_gpus
from keras_fastnet.scaling.applications import application_named, application_names
from keras_fastnet.scaling.bench_options import BenchOptions, check_ranks
from keras_fastnet.scaling.bench_results import as_text, check_output, write


def measure_local_workers(workers: int, options: BenchOptions) -> int:
    """Starts workers on this machine, measures them, prints and writes the results.

    Args:
        workers: The number of workers.
        options: The options.

    Returns:
        The exit code.

    Raises:
        UsageError: If the options do not fit this process or the workers.
    """
    if "TF_CONFIG" in os.environ:
        raise UsageError(
            "--workers starts local workers, so TF_CONFIG must not be set. "
            "Received: both. Leave out --workers to measure the cluster of TF_CONFIG, "
            "or `unset TF_CONFIG`."
        )
    check_output(options.output)
    if not visible_gpus(os.environ):
        # With GPUs a worker may have several ranks. Then the workers check this.
        check_ranks(workers, options.grids)
    if options.model is not None:
        application_named(options.model, application_names())
    with tempfile.TemporaryDirectory() as folder:
        # --output is written only after all workers have succeeded.
        results = Path(folder) / "results.json"
        command = ["-m", "keras_fastnet.scaling.bench_worker", str(results)]
        code = launcher.run(
            workers,
            [*command, options.to_json()],
            environment={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            transport=options.transport,
        )
        if code == 0:
            document = json.loads(results.read_text(encoding="utf-8"))
            _finish(document, options.output)
        return code


def measure_this_cluster(options: BenchOptions) -> int:
    """Joins the cluster of this process and measures it; rank 0 writes the results.

    Args:
        options: The options, the same on all workers.

    Returns:
        The exit code.

    Raises:
        UsageError: If there is no cluster, it cannot form or does not fit the options.
    """
    if "TF_CONFIG" not in os.environ and not in_a_cluster():
        raise UsageError(
            "There must be workers to measure with. Received: neither --workers nor "
            "TF_CONFIG. Pass `--workers 4` to start four here; on a cluster, "
            "start `fastnet bench` on every machine, with TF_CONFIG, `mpiexec` or "
            "`srun`."
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from keras_fastnet.cluster.cluster_spec import read_tf_config
    from keras_fastnet.scaling.bench_worker import measure

    try:
        cluster = read_tf_config()
        ranks = [
            None if cluster is None else cluster.rank,
            mpi_rank(os.environ),
            *(stated.rank for stated in scheduler_ranks(os.environ)),
        ]
        if next((rank for rank in ranks if rank is not None), None) == 0:
            check_output(options.output)
        document = measure(options)
    except ClusterError as error:
        raise UsageError(str(error)) from error
    if document is not None:
        _finish(document, options.output)
    return 0


def _finish(document: dict[str, Any], output: str) -> None:
    write(document, output)
    print(f"\n{as_text(document)}\n\nwritten: {output}", flush=True)
