"""The contestants: a name, who runs it, and the arguments it gets."""

import dataclasses
from typing import Any

MIB = 1024 * 1024
KERAS = "keras_worker.py"
TORCH = "torch_worker.py"


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One row of the table.

    Attributes:
        name: As the table shows it.
        worker: The script that runs one of its workers.
        strategy: What kind of data parallelism; "none" for processes that do not
            know of each other.
        arguments: Keyword arguments of the strategy.
        alone: The contestant whose step with one worker stands for this one's: with
            one worker nothing is exchanged, so one measurement serves all variants.
            Empty when one worker is not measured.
        mpi: Whether the workers are ranks of an MPI world.
    """

    name: str
    worker: str
    strategy: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    alone: str = ""
    mpi: bool = False


KERAS_CEILING = "Keras, no communication"
STOCK = "MultiWorkerMirroredStrategy"
MIRRORED = "MultiWorkerMirroredStrategy, `reduce` overridden"
TORUS = "TorusStrategy"
TORUS_ONE_BUCKET = "TorusStrategy, one bucket"
TORCH_CEILING = "PyTorch, no communication"
DDP = "PyTorch DDP, gloo"

CONTESTANTS = (
    Contestant(KERAS_CEILING, KERAS, "none", alone=KERAS_CEILING),
    Contestant(STOCK, KERAS, "stock"),
    Contestant(MIRRORED, KERAS, "mirrored", alone=MIRRORED),
    Contestant(
        f"{MIRRORED}, packs of 25 MiB",
        KERAS,
        "mirrored",
        {"bytes_per_pack": 25 * MIB},
        alone=MIRRORED,
    ),
    Contestant(TORUS, KERAS, "torus", alone=TORUS),
    Contestant(f"{TORUS}, MPI", KERAS, "torus", alone=TORUS, mpi=True),
    Contestant(
        f"{TORUS}, MPI, bfloat16 on the wire",
        KERAS,
        "torus",
        {"wire_dtype": "bfloat16"},
        alone=TORUS,
        mpi=True,
    ),
    Contestant(
        f"{TORUS}, bfloat16 on the wire",
        KERAS,
        "torus",
        {"wire_dtype": "bfloat16"},
        alone=TORUS,
    ),
    Contestant(
        f"{TORUS}, buckets of 4 MiB",
        KERAS,
        "torus",
        {"bucket_bytes": 4 * MIB},
        alone=TORUS,
    ),
    Contestant(
        f"{TORUS}, buckets of 64 MiB",
        KERAS,
        "torus",
        {"bucket_bytes": 64 * MIB},
        alone=TORUS,
    ),
    Contestant(
        TORUS_ONE_BUCKET, KERAS, "torus", {"bucket_bytes": 1024 * MIB}, alone=TORUS
    ),
    Contestant(TORCH_CEILING, TORCH, "none", alone=TORCH_CEILING),
    Contestant(DDP, TORCH, "ddp", alone=DDP),
    Contestant(
        # Its hook for bfloat16 refuses gloo; float16 sends as many bytes.
        f"{DDP}, float16 on the wire",
        TORCH,
        "ddp",
        {"wire_dtype": "float16"},
        alone=DDP,
    ),
)
