"""Prints the median seconds of a pass of accelerate's disk offload: directory, layers, width, samples, turns."""

import statistics
import sys
import time

import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch

directory = sys.argv[1]
layers, width, samples, turns = map(int, sys.argv[2:6])


class Net(torch.nn.ModuleList):
    def forward(self, x):
        for layer in self:
            x = x + torch.relu(layer(x))
        return x


with init_empty_weights():
    net = Net([torch.nn.Linear(width, width, bias=False) for _ in range(layers)])
net = load_checkpoint_and_dispatch(
    net,
    directory,
    # It does not load a model that is on the disk as a whole.
    device_map={str(layer): "disk" if layer else "cpu" for layer in range(layers)},
    offload_folder=directory + "-offloaded",
)
x = torch.ones(samples, width)
times = []
with torch.no_grad():
    for turn in range(turns + 1):
        started = time.time()
        net(x)
        if turn > 0:
            times.append(time.time() - started)
print("seconds", statistics.median(times))
