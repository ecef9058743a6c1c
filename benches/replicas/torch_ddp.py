"""A rank of the same training in PyTorch: `DistributedDataParallel` over gloo. A step for every line."""

import os
import socket
import time

import torch
import torch.distributed as dist

NAMES = ("LAYERS", "WIDTH", "SAMPLES", "MICRO_BATCHES")
LAYERS, WIDTH, SAMPLES, MICRO_BATCHES = (int(os.environ[f"CASE_{name}"]) for name in NAMES)

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
layers = []
for _ in range(LAYERS):
    layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
module = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
count = MICRO_BATCHES // size
parts = [(torch.rand(SAMPLES // MICRO_BATCHES, WIDTH), torch.rand(SAMPLES // MICRO_BATCHES, WIDTH)) for _ in range(count)]


def backward(x, y):
    (torch.nn.functional.mse_loss(module(x), y) / count).backward()


host, port = os.environ["TINDERBOX_BENCH_CONTROL"].rsplit(":", 1)
control = socket.create_connection((host, int(port)))
control.sendall(f"{rank} {os.getpid()}\n".encode())
for _ in control.makefile():
    started = time.perf_counter()
    optimizer.zero_grad()
    # Gradients are exchanged in the backward of the last micro-batch.
    with module.no_sync():
        for part in parts[:-1]:
            backward(*part)
    backward(*parts[-1])
    optimizer.step()
    control.sendall(f"{time.perf_counter() - started:.9f}\n".encode())
os._exit(0)
