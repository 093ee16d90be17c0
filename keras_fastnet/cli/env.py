"""`fastnet env`: prints the description of this environment for a bug report."""

import argparse
import os
import platform
from importlib import metadata
from pathlib import Path

from keras_fastnet.cluster.environment import who_started
from keras_fastnet.cluster.mpi import mpi4py_is_installed
from keras_fastnet.launcher.worker_environment import available_cpus, visible_gpus
from keras_fastnet.text import count, fact
from keras_fastnet.version import __version__

_PACKAGES = (
    *("tensorflow", "tensorflow-cpu", "keras", "keras-nightly", "tf-keras", "numpy"),
    *("mpi4py", "mpich", "ray", "tf-models-official", "tensorflow-addons"),
)
# Known names only: other variables of these prefixes may hold secrets.
_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "KERAS_BACKEND", "TF_CONFIG"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_USE_LEGACY_KERAS"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS"),
    *("TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR", "TF_XLA_FLAGS", "XLA_FLAGS"),
    *("FASTNET_INDEPENDENT", "PMI_RANK", "PMI_SIZE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RAY_RAYLET_PID"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

_DESCRIPTION = """\
Print the versions, transports, devices and the cluster that this environment describes,
for a bug report. Run it on the machine, and in the job, where the error occurs.
"""


def add_parser(subparsers: "argparse._SubParsersAction") -> None:
    """Adds the parser of `fastnet env`."""
    parser = subparsers.add_parser(
        "env",
        help="print versions and devices, for a bug report",
        description=_DESCRIPTION,
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Runs `fastnet env` and returns its exit code."""
    gpus = visible_gpus(os.environ)
    known = [name for name in _VARIABLES if name in os.environ]
    source = who_started()
    found = ((d.name.replace("_", "-"), d.version) for d in metadata.distributions())
    versions = sorted({(name, number) for name, number in found if name in _PACKAGES})
    mpi = "and MPI" if mpi4py_is_installed() else "alone: MPI is not installed"
    rows = (
        ("keras-fastnet", f"{__version__}, in {Path(__file__).parents[1]}"),
        ("Python", f"{platform.python_version()}, {platform.platform()}"),
        ("packages", ", ".join(f"{name} {number}" for name, number in versions)),
        ("transports", f"TensorFlow's (gRPC, NCCL) {mpi}"),
        ("devices", f"{count(available_cpus(), 'CPU')}, {count(len(gpus), 'GPU')}"),
        ("cluster", f"described by {source}" if source else "none is described"),
        ("variables", ", ".join(f"{n}={os.environ[n]}" for n in known) or "none"),
    )
    print("\n".join(fact(name, value) for name, value in rows))
    return 0
