"""A worker that acts as told: `act.py DIRECTORY RANK=ACTION…`, without TensorFlow.

It writes its process id to DIRECTORY/RANK.pid before it acts. With `once`, it acts in
the first start only.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

directory, *orders = sys.argv[1:]
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
action = dict(order.split("=", 1) for order in orders).get(str(rank), "")


def leave_pid(name, pid):
    path = Path(directory, f"{name}.pid")
    path.with_suffix(".new").write_text(str(pid))
    path.with_suffix(".new").rename(path)


def await_file(name):
    while not Path(directory, name).exists():
        time.sleep(0.01)


once = Path(directory, f"{rank}.once")
if "once" in action and once.exists():
    action = "say hello"
elif "once" in action:
    once.touch()
if "deaf" in action:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "parent" in action:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    leave_pid(f"{rank}-child", subprocess.Popen(command).pid)
leave_pid(rank, os.getpid())
print(f"rank {rank} says hello")
print(f"rank {rank} is careful", file=sys.stderr)
if "raise" in action or "crash" in action:
    # Waits until the other workers, named in the orders, have started.
    for order in orders:
        await_file(f"{order.split('=')[0]}.pid")
if "linger" in action:
    # A thread that Python waits for when the program has failed.
    threading.Thread(target=time.sleep, args=(600,)).start()
if "raise" in action:
    raise RuntimeError(f"rank {rank} is broken")
if "crash" in action:
    os.kill(os.getpid(), signal.SIGKILL)
if "sleep" in action:
    time.sleep(600)
