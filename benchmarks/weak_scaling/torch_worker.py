"""One worker of a PyTorch configuration, the counterpart of `keras_worker.py`.

It runs in an environment that has PyTorch and does not need keras_fastnet.
"""

import itertools
import json
import sys
import time

import torch
import torch.distributed
from job_result import write
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch_resnet50 import resnet50


def parallel(model, job):
    if job["strategy"] == "none":
        return model
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{job['meeting_point']}",
        rank=job["rank"],
        world_size=job["workers"],
    )
    model = nn.parallel.DistributedDataParallel(model)
    if job["arguments"].get("wire_dtype") == "float16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def main():
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.set_num_interop_threads(job["inter_op"])
    torch.manual_seed(0)
    # TensorFlow's layout, and PyTorch's faster one on CPUs.
    layout = torch.channels_last
    model = resnet50().to(memory_format=layout)
    parameters = sum(p.numel() for p in model.parameters())
    model = parallel(model, job).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_function = nn.CrossEntropyLoss()
    size = job["image_size"]
    images = torch.randn(job["batch_size"], 3, size, size).to(memory_format=layout)
    labels = torch.randint(0, 1000, (job["batch_size"],))

    ends = []
    # The first step only starts the clock.
    for _ in range(1 + job["warm_up"] + job["steps"]):
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    times = [1e3 * (end - start) for start, end in itertools.pairwise(ends)]
    result = {
        "step_ms": times[job["warm_up"] :],
        "parameters": parameters,
        "versions": {"torch": torch.__version__},
    }
    write(job, result)


if __name__ == "__main__":
    main()
