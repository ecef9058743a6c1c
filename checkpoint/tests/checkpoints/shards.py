"""Writes a checkpoint in Hugging Face's form from four processes, without consolidating it: `shards.py DIR`."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANKS = 4


def numbered(*shape):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def save(rank, store, directory):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    line = init_device_mesh("cpu", (RANKS,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    state = {
        "rows": distribute_tensor(numbered(10, 4), line, [Shard(0)]),
        "columns": distribute_tensor(numbered(3, 9), line, [Shard(1)]),
        "both": distribute_tensor(numbered(7, 6), grid, [Shard(0), Shard(1)]),
        "whole": distribute_tensor(numbered(5), line, [Replicate()]),
    }
    names = {"rows": 1, "columns": 1, "both": 2, "whole": 2}
    # The option had another name before PyTorch 2.9.
    for option in ("save_distributed", "save_sharded"):
        try:
            writer = HuggingFaceStorageWriter(
                path=directory, fqn_to_index_mapping=names, **{option: True}
            )
            break
        except TypeError as error:
            failed = error
    else:
        raise failed
    dcp.save(state, storage_writer=writer)
    dist.destroy_process_group()


if __name__ == "__main__":
    [directory] = sys.argv[1:]
    mp.spawn(save, args=(directory + "/.store", directory), nprocs=RANKS)
