"""Runs and times exported programs on JAX's default device, without TensorFlow.

    python benchmarks/compilers/run.py --export FOLDER      # where TensorFlow is
    python benchmarks/compilers/execute.py FOLDER           # where the GPU and JAX are

Every program runs with random weights and data, on a device that does nothing else.
`floor_ms` is the time to move the bytes that an update must move, at the speed at which
the device copies a large array. Prints a line for each program, and writes
FOLDER/executed.json.
"""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Callable

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from program import module_of

jax.config.update("jax_enable_x64", True)


def milliseconds(call: Callable[[], jax.Array], rounds: int) -> float:
    """Returns the median time of a call, over series of ten calls."""
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        for _ in range(10):
            last = call()
        last.block_until_ready()
        times.append(1e3 * (time.perf_counter() - begun) / 10)
    return statistics.median(times[1:])


def copied_bytes_a_second(elements: int, rounds: int) -> float:
    """Returns the speed at which the device reads and writes a large array."""
    value = jax.numpy.ones([elements], "float32")
    scaled = jax.jit(lambda x: x * 1.0000001, donate_argnums=0)

    def copy() -> jax.Array:
        nonlocal value
        value = scaled(value)
        return value

    return 8 * elements / milliseconds(copy, rounds) * 1e3


def runner(program: bytes) -> Callable[[], list[jax.Array]]:
    """Returns a function that runs a program once.

    The arguments are random at first. Those that the program changes in place, as
    weights, are its own results from then on.

    Args:
        program: A serialized `HloModuleProto`.
    """
    computation = xla_client.XlaComputation(program)
    header = computation.as_hlo_text().partition("\n")[0]
    changed = re.findall(r"\{(\d+)\}: \((\d+), \{\}, (?:may|must)-alias\)", header)
    shape = computation.program_shape()
    device = jax.devices()[0]
    generator = np.random.default_rng(0)
    arguments = []
    for parameter in shape.parameter_shapes():
        dtype, dimensions = parameter.numpy_dtype(), parameter.dimensions()
        value = np.zeros(dimensions, dtype)
        if np.issubdtype(dtype, np.floating):
            # Not negative: some are variances.
            value = np.abs(0.05 * generator.standard_normal(dimensions)).astype(dtype)
        arguments.append(jax.device_put(value, device))
    with mlir.make_ir_context():
        made = device.client.compile_and_load(
            module_of(program),
            xla_client.DeviceList((device,)),
            xla_client.CompileOptions(),
        )

    def run() -> list[jax.Array]:
        found = made.execute_sharded(arguments)
        results = [each for (each,) in found.disassemble_into_single_device_arrays()]
        for result, argument in changed:
            arguments[int(argument)] = results[int(result)]
        return results

    return run


def executed(file: pathlib.Path, rounds: int) -> dict:
    """Runs a program and returns what was seen."""
    begun = time.perf_counter()
    run = runner(file.read_bytes())
    results = run()
    finite = all(
        bool(jax.numpy.isfinite(array).all())
        for array in results
        if jax.numpy.issubdtype(array.dtype, jax.numpy.floating)
    )
    compiled = time.perf_counter() - begun
    statistics_of_memory = jax.devices()[0].memory_stats() or {}
    return {
        "ms": milliseconds(lambda: run()[0], rounds),
        "compile_seconds": compiled,
        "finite": finite,
        "peak_bytes": statistics_of_memory.get("peak_bytes_in_use"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path, help="that `--export` wrote")
    parser.add_argument("--rounds", type=int, default=5, help="of ten calls; default 5")
    parser.add_argument(
        "--copied", type=int, default=2**28, help="elements of the copied array"
    )
    args = parser.parse_args()
    manifest = args.folder / "programs.json"
    if not manifest.is_file():
        parser.error(
            f"FOLDER must hold the programs that run.py --export writes. Received: "
            f"{args.folder}, without programs.json."
        )
    speed = copied_bytes_a_second(args.copied, args.rounds)
    found = []
    for case in json.loads(manifest.read_text()):
        case |= executed(args.folder / case["file"], args.rounds)
        if "moved_bytes" in case:
            case["floor_ms"] = 1e3 * case["moved_bytes"] / speed
        print(json.dumps(case), flush=True)
        found.append(case)
    result = {
        "conditions": {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "command": "python benchmarks/compilers/execute.py FOLDER",
            "device": jax.devices()[0].device_kind,
            "copied_bytes_a_second": speed,
            "rounds": args.rounds,
            "versions": {
                name: importlib.metadata.version(name) for name in ("jax", "jaxlib")
            },
        },
        "programs": found,
    }
    (args.folder / "executed.json").write_text(json.dumps(result, indent=1) + "\n")
    if not all(case["finite"] for case in found):
        sys.exit("A program's results are not finite.")


if __name__ == "__main__":
    main()
