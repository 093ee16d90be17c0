"""Compiles keras_fastnet's programs for GPUs and TPUs; neither device is needed.

    python benchmarks/compilers/run.py --jax-python PATH     # about 6 minutes

PATH is the Python of an environment with pip install "jax[cuda12]" libtpu, which does
not need TensorFlow. Writes result.json; nothing runs, so it contains no speed.
"""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
# Program, its options, the device that it is compiled for, and their number.
CASES = [
    *(("update", ["--optimizer", name], "h100", 1) for name in ("SGD", "LARS")),
    *(("gpu", ["--precision", name], "h100", 1) for name in PRECISIONS),
    # TPUs have no float16.
    *(("tpu", ["--precision", name], "v5e", 4) for name in PRECISIONS[::2]),
]


def last_line(*command: str) -> dict:
    """Runs a command and returns the JSON object that it prints last."""
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stderr[-2000:]}")
    return json.loads(ended.stdout.splitlines()[-1])


def exported(program: str, file: pathlib.Path, options: list[str]) -> dict:
    """Writes a program to a file, and returns its description."""
    return last_line(
        sys.executable, str(HERE / "export.py"), program, str(file), *options
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jax-python", metavar="PATH", required=True)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "result.json")
    args = parser.parse_args()
    if shutil.which(args.jax_python) is None:
        parser.error(f"--jax-python must be a Python. Received: {args.jax_python}.")
    found = []
    with tempfile.TemporaryDirectory(prefix="fastnet-compilers-") as folder:
        program = pathlib.Path(folder) / "program"
        for name, options, kind, cores in CASES:
            case = {"program": name, "options": options, "compiled_for": kind}
            case |= exported(name, program, options)
            case |= last_line(
                *(args.jax_python, str(HERE / "compile.py"), str(program), kind),
                *("--cores", str(cores)),
            )
            print(json.dumps(case), flush=True)
            found.append(case)
    result = {
        "conditions": {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "command": "python benchmarks/compilers/run.py --jax-python PATH",
            "versions": {
                package: importlib.metadata.version(package)
                for package in ("tensorflow", "keras", "keras-fastnet", "numpy")
            },
            "compilers": json.loads(
                subprocess.run(
                    [args.jax_python, "-c", _VERSIONS],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            ),
        },
        "programs": found,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")


_VERSIONS = """
import importlib.metadata, json
names = "jax", "jaxlib", "jax-cuda12-pjrt", "nvidia-cudnn-cu12", "libtpu"
print(json.dumps({name: importlib.metadata.version(name) for name in names}))
"""

if __name__ == "__main__":
    main()
