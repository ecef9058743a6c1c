"""Prints the median seconds of a pass of accelerate's disk offload: file, layers, width, samples, turns."""

import statistics
import sys
import time

import torch
from accelerate import dispatch_model, init_empty_weights
from accelerate.utils import set_module_tensor_to_device
from safetensors import safe_open

file = sys.argv[1]
layers, width, samples, turns = map(int, sys.argv[2:6])


class Net(torch.nn.ModuleList):
    def forward(self, x):
        for layer in self:
            x = x + torch.relu(layer(x))
        return x


with init_empty_weights():
    net = Net([torch.nn.Linear(width, width, bias=False) for _ in range(layers)])
# It does not dispatch a model that is on the disk as a whole.
with safe_open(file, framework="pt") as weights:
    set_module_tensor_to_device(net, "0.weight", "cpu", weights.get_tensor("0.weight"))
names = [f"{layer}.weight" for layer in range(1, layers)]
net = dispatch_model(
    net,
    {str(layer): "disk" if layer else "cpu" for layer in range(layers)},
    # The weights are read from the file itself.
    offload_index={
        name: {"safetensors_file": file, "weight_name": name, "dtype": "float32"} for name in names
    },
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
