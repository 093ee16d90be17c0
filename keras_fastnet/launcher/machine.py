"""The CPUs and GPUs of this machine."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


def available_cpus() -> int:
    """Returns the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def processor_name() -> str:
    """Returns the processor's model name."""
    # Processors of other kinds than x86-64 have no such line.
    named = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return named[1] if named else platform.machine()


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Returns the names of the GPUs that a program with this environment sees.

    These are the devices of CUDA_VISIBLE_DEVICES if it is set, otherwise those that
    `nvidia-smi -L` lists, otherwise none.
    """
    if "CUDA_VISIBLE_DEVICES" in environment:
        return parse_visible_devices(environment["CUDA_VISIBLE_DEVICES"])
    command = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if command is None:
        return []
    try:
        listing = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", listing.stdout, re.M)


def parse_visible_devices(value: str) -> list[str]:
    """Returns the devices in a value of CUDA_VISIBLE_DEVICES."""
    devices = []
    for device in value.split(","):
        device = device.strip()
        # CUDA ignores all entries after the first invalid one. -1 and NoDevFiles (as
        # Slurm sets it) are invalid on purpose.
        if not device or device.startswith("-") or device == "NoDevFiles":
            break
        devices.append(device)
    return devices
