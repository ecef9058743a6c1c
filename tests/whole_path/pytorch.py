"""The forward of four layers by PyTorch's definitions: Linear(3, 5), LayerNorm(5), Linear(5, 4), BatchNorm1d(4).

The layers are the entries 0 to 3 of a `torch.nn.Sequential`. Reads the files of a directory in Hugging Face's form with
the standard library alone, takes the rows of the input as numbers, and prints the rows of the output as JSON.
"""

import json
import math
import os
import struct
import sys

EPSILON = 1e-5


def tensors_of(directory):
    with open(os.path.join(directory, "model.safetensors.index.json"), encoding="utf-8") as file:
        files = json.load(file)["weight_map"]
    tensors = {}
    for name in set(files.values()):
        with open(os.path.join(directory, name), "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            data = file.read()
        assert header.pop("__metadata__") == {"format": "pt"}
        for key, entry in header.items():
            assert files[key] == name, key
            begin, end = entry["data_offsets"]
            kind = {"F32": "f", "I64": "q"}[entry["dtype"]]
            count = (end - begin) // struct.calcsize(kind)
            tensors[key] = entry["shape"], struct.unpack(f"<{count}{kind}", data[begin:end])
    assert set(tensors) == set(files)
    return tensors


def linear(x, weight, bias):
    (outputs, inputs), weight = weight
    assert len(x) == inputs
    rows = [weight[i * inputs : (i + 1) * inputs] for i in range(outputs)]
    return [sum(a * b for a, b in zip(row, x)) + c for row, c in zip(rows, bias[1], strict=True)]


def layer_norm(x, weight, bias):
    mean = sum(x) / len(x)
    variance = sum((a - mean) ** 2 for a in x) / len(x)
    x = [(a - mean) / math.sqrt(variance + EPSILON) for a in x]
    return [a * b + c for a, b, c in zip(x, weight[1], bias[1], strict=True)]


def batch_norm(x, weight, bias, mean, variance):
    columns = zip(x, weight[1], bias[1], mean[1], variance[1], strict=True)
    return [(a - m) / math.sqrt(v + EPSILON) * b + c for a, b, c, m, v in columns]


def main(directory, *numbers):
    state = tensors_of(directory)
    numbers = [float(number) for number in numbers]
    # As `load_state_dict(strict=True)`, every entry is used.
    take = lambda layer, *names: [state.pop(f"{layer}.{name}") for name in names]
    first, norm, second = (take(layer, "weight", "bias") for layer in range(3))
    batch = take(3, "weight", "bias", "running_mean", "running_var")
    assert take(3, "num_batches_tracked") == [([], (0,))]
    assert not state, sorted(state)
    found = []
    for at in range(0, len(numbers), 3):
        x = linear(numbers[at : at + 3], *first)
        found += batch_norm(linear(layer_norm(x, *norm), *second), *batch)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
