#!/usr/bin/env python3
"""Makes the ONNX files of this folder, and what ONNX's own evaluator computes with them.

Usage: make_models.py DIRECTORY

Writes NAME.onnx and NAME.json for each model: the input, and the output of `onnx.reference.ReferenceEvaluator`. Graphs have
the form in which PyTorch exports such networks. Needs the package `onnx`, of version 1.16 or later. `models/mod.rs` has the
commands that generate the Rust code from the files.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 17
IR_VERSION = 8
CLASSES = 10
SAMPLES = 4


class Graph:
    """A graph whose initializers are random."""

    def __init__(self, seed):
        # The generator whose values no version of numpy changes.
        self.random = np.random.RandomState(seed)
        self.nodes = []
        self.initializers = []

    def node(self, operator, *inputs, **attributes):
        name = f"{operator}_{len(self.nodes)}"
        output = f"{name}_output"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, name, values):
        self.initializers.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def normal(self, name, shape, scale, mean=0.0):
        values = self.random.standard_normal(shape) * scale + mean
        return self.constant(name, values.astype(np.float32))

    def classes(self, x):
        """The last layer, on 16 features of each sample."""
        weight = self.normal("head.weight", (CLASSES, 16), 0.25)
        bias = self.normal("head.bias", CLASSES, 0.1)
        return self.node("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1)

    def model(self, inputs, output):
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])
        self.nodes.append(helper.make_node("Identity", [output], ["logits"], name="Identity_logits"))
        graph = helper.make_graph(self.nodes, "main_graph", inputs, [logits], self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        model.producer_name = "tinderbox"
        onnx.checker.check_model(model, full_check=True)
        return model


class Residual(Graph):
    """A small ResNet."""

    name = "residual"

    def convolution(self, name, x, channels, size, stride=1):
        fan_in = channels[0] * size * size
        weight = self.normal(f"{name}.weight", (channels[1], channels[0], size, size), math.sqrt(2 / fan_in))
        pad = size // 2
        return self.node("Conv", x, weight, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4,
                         dilations=[1, 1], group=1)

    def norm(self, name, x, channels):
        variance = 0.5 + self.random.random_sample(channels)
        parameters = [
            self.normal(f"{name}.weight", channels, 0.1, 1.0),
            self.normal(f"{name}.bias", channels, 0.1),
            self.normal(f"{name}.running_mean", channels, 0.1),
            self.constant(f"{name}.running_var", variance.astype(np.float32)),
        ]
        return self.node("BatchNormalization", x, *parameters, epsilon=1e-5, momentum=0.9)

    def block(self, name, x, channels, stride):
        y = self.convolution(f"{name}.conv1", x, channels, 3, stride)
        y = self.node("Relu", self.norm(f"{name}.bn1", y, channels[1]))
        y = self.convolution(f"{name}.conv2", y, [channels[1]] * 2, 3)
        y = self.norm(f"{name}.bn2", y, channels[1])
        if stride != 1:
            x = self.convolution(f"{name}.downsample.0", x, channels, 1, stride)
            x = self.norm(f"{name}.downsample.1", x, channels[1])
        return self.node("Relu", self.node("Add", y, x))

    def build(self):
        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 16, 16])
        x = self.norm("bn1", self.convolution("conv1", "images", [3, 8], 3), 8)
        x = self.node("MaxPool", self.node("Relu", x), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        x = self.block("layer1.0", x, [8, 8], 1)
        x = self.block("layer2.0", x, [8, 16], 2)
        x = self.node("Flatten", self.node("GlobalAveragePool", x), axis=1)
        return self.model([images], self.classes(x))

    def input(self):
        images = self.random.randint(-16, 17, (SAMPLES, 3, 16, 16)) / 8
        return {"images": images.astype(np.float32)}


class Encoder(Graph):
    """A text classifier with one layer of BERT, for texts of up to `LENGTH` words; word 0 is padding."""

    name = "encoder"
    WORDS, LENGTH, WIDTH, HEADS = 50, 8, 16, 2

    def integers(self, name, values):
        return self.constant(name, np.array(values, dtype=np.int64))

    def scalar(self, name, value):
        return self.constant(name, np.array(value, dtype=np.float32))

    def linear(self, name, x, sizes):
        weight = self.normal(f"{name}.weight", sizes, 1 / math.sqrt(sizes[0]))
        bias = self.normal(f"{name}.bias", sizes[1], 0.1)
        return self.node("Add", self.node("MatMul", x, weight), bias)

    def norm(self, name, x):
        weight = self.normal(f"{name}.weight", self.WIDTH, 0.1, 1.0)
        bias = self.normal(f"{name}.bias", self.WIDTH, 0.1)
        return self.node("LayerNormalization", x, weight, bias, axis=-1, epsilon=1e-5)

    def size(self, x, axis):
        """What PyTorch exports for `x.size(axis)` of a dynamic axis."""
        axis = self.integers(f"dimension_{len(self.nodes)}", axis)
        return self.node("Gather", self.node("Shape", x), axis, axis=0)

    def shape(self, x, *rest):
        """A shape of the two dynamic sizes of a tensor, and others."""
        sizes = [self.node("Unsqueeze", self.size(x, axis), "axis_0") for axis in [0, 1]]
        rest = [self.integers(f"rest_{len(self.nodes)}", rest)] if rest else []
        return self.node("Concat", *sizes, *rest, axis=0)

    def embeddings(self):
        words = self.node("Gather", self.normal("words", (self.WORDS, self.WIDTH), 1.0), "tokens", axis=0)
        length = self.size("tokens", 1)
        # The types of tokens are a buffer of zeros.
        types = self.integers("type_ids", [[0] * self.LENGTH])
        types = self.node("Slice", types, "axis_0", self.node("Unsqueeze", length, "axis_0"), "axis_1")
        types = self.node("Expand", types, self.shape("tokens"))
        types = self.node("Gather", self.normal("types", (2, self.WIDTH), 0.5), types, axis=0)
        positions = self.node("Range", self.integers("first", 0), length, self.integers("step", 1))
        positions = self.node("Gather", self.normal("positions", (self.LENGTH, self.WIDTH), 0.5), positions, axis=0)
        return self.node("Add", self.node("Add", words, types), positions)

    def padding(self):
        """Minus 10000 where a key is padding."""
        padding = self.node("Cast", self.node("Equal", "tokens", self.integers("pad", 0)), to=TensorProto.FLOAT)
        padding = self.node("Unsqueeze", padding, self.integers("axes_1_2", [1, 2]))
        return self.node("Mul", padding, self.scalar("large", -10000.0))

    def attention(self, name, x):
        sizes = [self.WIDTH, self.WIDTH]
        width = self.WIDTH // self.HEADS
        shape = self.shape(x, self.HEADS, width)

        def heads(part):
            y = self.linear(f"{name}.{part}", x, sizes)
            return self.node("Transpose", self.node("Reshape", y, shape), perm=[0, 2, 1, 3])

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Div", scores, self.scalar(f"{name}.root", math.sqrt(width)))
        weights = self.node("Softmax", self.node("Add", scores, self.padding()), axis=-1)
        y = self.node("Transpose", self.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        y = self.node("Reshape", y, self.shape(x, self.WIDTH))
        return self.linear(f"{name}.output", y, sizes)

    def gelu(self, x):
        """What PyTorch exports before opset 20."""
        y = self.node("Erf", self.node("Div", x, self.scalar("gelu.root", math.sqrt(2))))
        y = self.node("Mul", x, self.node("Add", y, self.scalar("gelu.one", 1.0)))
        return self.node("Mul", y, self.scalar("gelu.half", 0.5))

    def build(self):
        tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "length"])
        self.integers("axis_0", [0])
        self.integers("axis_1", [1])
        x = self.norm("norm1", self.embeddings())
        x = self.norm("norm2", self.node("Add", x, self.attention("attention", x)))
        y = self.linear("up", x, [self.WIDTH, 2 * self.WIDTH])
        y = self.linear("down", self.gelu(y), [2 * self.WIDTH, self.WIDTH])
        x = self.norm("norm3", self.node("Add", x, y))
        return self.model([tokens], self.classes(self.node("ReduceMean", x, axes=[1], keepdims=0)))

    def input(self):
        tokens = self.random.randint(1, self.WORDS, (SAMPLES, self.LENGTH))
        tokens[1:3, 5:] = 0
        return {"tokens": tokens.astype(np.int64)}


class Masked(Graph):
    """Means over sequences that are padded to the longest one, whose length is a value of the batch."""

    name = "masked"

    def build(self):
        sequences = helper.make_tensor_value_info("sequences", TensorProto.FLOAT, ["batch", "length", 16])
        lengths = helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"])
        last = self.constant("last", np.array([-1], dtype=np.int64))
        scalars = [self.constant(name, np.array(value, dtype=np.int64)) for name, value in [("zero", 0), ("one", 1)]]
        longest = self.node("ReduceMax", "lengths", axes=[0], keepdims=0)
        positions = self.node("Range", scalars[0], longest, scalars[1])
        mask = self.node("Less", positions, self.node("Unsqueeze", "lengths", last))
        mask = self.node("Unsqueeze", self.node("Cast", mask, to=TensorProto.FLOAT), last)
        x = self.node("ReduceMean", self.node("Mul", "sequences", mask), axes=[1], keepdims=0)
        return self.model([sequences, lengths], self.classes(x))

    def input(self):
        sequences = self.random.randint(-16, 17, (SAMPLES, 8, 16)) / 8
        return {"sequences": sequences.astype(np.float32), "lengths": np.array([3, 8, 1, 5], dtype=np.int64)}


def main():
    directory = Path(sys.argv[1])
    for seed, graph in enumerate([Residual, Encoder, Masked]):
        graph = graph(seed)
        model = graph.build()
        (directory / f"{graph.name}.onnx").write_bytes(model.SerializeToString(deterministic=True))
        inputs = graph.input()
        [logits] = ReferenceEvaluator(model).run(["logits"], inputs)
        values = {name: values.flatten().tolist() for name, values in [*inputs.items(), ("logits", logits)]}
        (directory / f"{graph.name}.json").write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
