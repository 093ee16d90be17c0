"""Measures what LARS and large batches cost on a GPU.

    python benchmarks/accelerator/run.py                    # about 20 minutes on a GPU
    python benchmarks/accelerator/run.py --smoke            # on any machine, small

Every part runs in a separate process, so that its peak memory is measured alone.
`--smoke` makes everything small and also runs on a CPU; its figures mean nothing and
are not kept. Accuracies are measured by benchmarks/large_batch_accuracy/run.py.
"""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import subprocess
import sys

from keras_fastnet.launcher.worker_environment import processor_name

HERE = pathlib.Path(__file__).parent
BFLOAT16 = "--precision mixed_bfloat16"
FLOAT16 = "--precision mixed_float16"
LARS = "--optimizer LARS"
XLA = "--jit-compile"
TRAININGS = (
    f"{BFLOAT16} --keras",
    f"{BFLOAT16}",
    f"{BFLOAT16} {LARS}",
    f"{BFLOAT16} --keras {XLA}",
    f"{BFLOAT16} {LARS} {XLA}",
    # 256 micro-batches of 128 images are 32,768.
    f"{BFLOAT16} {LARS} {XLA} --accumulation-steps 256 --epochs 3",
    f"{BFLOAT16} {LARS} {XLA} --accumulation-steps 8",
    f"{BFLOAT16} {LARS} {XLA} --accumulation-steps 8 --noise",
    "--keras",
    "",
    LARS,
    f"{FLOAT16} {LARS}",
    f"{FLOAT16} {LARS} {XLA}",
    f"--keras {XLA}",
    f"{LARS} {XLA}",
)
_CLOCKS = (
    "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total"
)


def measured(part: str, *options: str, smoke: bool) -> dict:
    """Runs one part and returns the JSON object that it printed last."""
    command = [sys.executable, str(HERE / f"{part}.py"), *options]
    command += ["--smoke"] if smoke else []
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stderr[-2000:]}")
    found = json.loads(ended.stdout.splitlines()[-1])
    print(json.dumps(found), flush=True)
    return found


def conditions() -> dict:
    """Returns the conditions under which the figures were measured."""
    try:
        clocks = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv"],
            capture_output=True,
            text=True,
        ).stdout.splitlines()
    except OSError:
        clocks = []
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": " ".join(["python benchmarks/accelerator/run.py", *sys.argv[1:]]),
        "processor": processor_name(),
        "nvidia-smi": clocks,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tensorflow", "keras", "keras-fastnet", "numpy")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="small, on any machine")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    args = parser.parse_args()
    result = {
        "conditions": conditions(),
        "update": measured("update", smoke=args.smoke),
        "training": [],
    }
    for options in TRAININGS:
        part = measured("training", *options.split(), smoke=args.smoke)
        result["training"].append(part)
        if not args.smoke:
            # A run that is cut short leaves what it has measured.
            args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
