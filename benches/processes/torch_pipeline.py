"""A rank of the same training in PyTorch: `torch.distributed.pipelining` over gloo. A step for every line."""

import os
import socket
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

NAMES = ("LAYERS", "WIDTH", "SAMPLES", "MICRO_BATCHES")
LAYERS, WIDTH, SAMPLES, MICRO_BATCHES = (int(os.environ[f"CASE_{name}"]) for name in NAMES)

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
layers = []
for _ in range(LAYERS // size):
    layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
module = torch.nn.Sequential(*layers)
# Newer releases read from the examples which values get a gradient: all but the batch.
example = torch.rand(SAMPLES // MICRO_BATCHES, WIDTH, requires_grad=True)
given = example.detach() if rank == 0 else example
stage = PipelineStage(module, rank, size, torch.device("cpu"), input_args=(given,), output_args=(example,))
# PyTorch 2.9 greets its neighbours with 8 bytes where they expect 4, which gloo refuses.
stage._get_init_p2p_neighbors_ops = lambda: []
schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
x, y = torch.rand(SAMPLES, WIDTH), torch.rand(SAMPLES, WIDTH)

host, port = os.environ["TINDERBOX_BENCH_CONTROL"].rsplit(":", 1)
control = socket.create_connection((host, int(port)))
control.sendall(f"{rank} {os.getpid()}\n".encode())
for _ in control.makefile():
    started = time.perf_counter()
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=y, losses=[])
    else:
        schedule.step()
    optimizer.step()
    control.sendall(f"{time.perf_counter() - started:.9f}\n".encode())
os._exit(0)
