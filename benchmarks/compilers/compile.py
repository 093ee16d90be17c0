"""Compiles a program that export.py wrote; neither GPU nor TPU is needed.

    python benchmarks/compilers/compile.py FILE h100
    python benchmarks/compilers/compile.py FILE v5e --cores 4

Needs an environment with JAX, which contains the compilers: pip install "jax[cuda12]"
libtpu. The last line printed is a JSON object that describes the compiled program.
"""

import argparse
import collections
import json
import os
import pathlib
import re

# Do not look for devices, on this machine or in a cloud.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
# Trying kernels out needs a GPU.
os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=0"

import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies

# From XLA's xla/backends/gpu/target_config/specs/h100_sxm.txtpb.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
NO_KERNEL = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast")
OF_THE_HOST = ("infeed", "outfeed", "send", "recv")


def module_of(program: bytes) -> ir.Module:
    """Returns a program as a module, in a context of MLIR.

    Args:
        program: A serialized `HloModuleProto`.
    """
    module = _jax.mlir.xla_computation_to_mlir_module(
        xla_client.XlaComputation(program)
    )
    # TensorFlow's copies of what it returns, in a dialect that JAX does not take.
    text = re.sub(
        r"mhlo\.copy (%\w+) : (tensor<[^>]*>)",
        r"stablehlo.reshape \1 : (\2) -> \2",
        re.sub(
            r'"mhlo\.copy"\((%\w+)\) : \((tensor<[^>]*>)\) -> tensor<[^>]*>',
            r"mhlo.copy \1 : \2",
            str(ir.Module.parse(module)),
        ),
    )
    return ir.Module.parse(text)


def devices_of(kind: str) -> list:
    if kind == "v5e":
        return topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    return topologies.get_topology_desc(
        platform="cuda", topology="1x1x1", target_config=H100
    ).devices


def compiled(program: bytes, kind: str, cores: int):
    """Compiles a program for a device and describes the result.

    Args:
        program: A serialized `HloModuleProto`.
        kind: `"h100"` or `"v5e"`.
        cores: The number of devices that run it together.
    """
    devices = devices_of(kind)[:cores]
    options = xla_client.CompileOptions()
    options.executable_build_options.num_replicas = cores
    if cores > 1:
        places = np.arange(cores)[:, None]
        options.device_assignment = xla_client.DeviceAssignment.create(places)
    with mlir.make_ir_context():
        return devices[0].client.compile(
            module_of(program), xla_client.DeviceList(tuple(devices)), options
        )


def operations(text: str) -> collections.Counter:
    """Counts operations in a program's text, or in a part of it."""
    return collections.Counter(
        re.findall(r"^\s+(?:ROOT )?%\S+ = .*? ([a-z][a-z0-9-]*)\(", text, re.MULTILINE)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("kind", choices=("h100", "v5e"))
    parser.add_argument("--cores", type=int, default=1)
    args = parser.parse_args()
    made = compiled(args.file.read_bytes(), args.kind, args.cores)
    text = made.hlo_modules()[0].to_string()
    everything = operations(text)
    started = operations(text[text.index("\nENTRY") :].split("\n}")[0])
    memory = made.get_compiled_memory_stats()
    print(
        json.dumps(
            {
                "kernels": sum(n for op, n in started.items() if op not in NO_KERNEL),
                # The kernels of these are not counted above.
                "conditions": everything["conditional"],
                "all_reduces": {
                    "in every step": started["all-reduce"],
                    "in a condition": everything["all-reduce"] - started["all-reduce"],
                },
                "of_the_host": [op for op in OF_THE_HOST if everything[op]],
                "calls": sorted(set(re.findall(r'custom_call_target="([^"]+)"', text))),
                "argument_bytes": memory.argument_size_in_bytes,
                "temporary_bytes": memory.temp_size_in_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
