# SPDX-License-Identifier: Apache-2.0
"""Small distributed checkpoints of PyTorch, written by four processes (gloo, CPU): python make.py OUT

OUT/sharded has what FSDP2 and tensor parallelism leave: DTensors cut by rows (unevenly, with an empty rank), by columns and
both, replicated ones, scalars, empty ones, every dtype, a transposed weight, and values that are no tensors. OUT/nested
is a state dict of a model and an optimizer. OUT/expected.jsonl has, a line for each tensor, the directory, the name, the
dtype and the elements in row-major order. `sharded` and `nested` here are by torch 2.15.0, `older` is `sharded` by torch 2.6.0."""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANKS = 4


def tensors():
    generator = torch.Generator().manual_seed(14)
    whole = {"rows": torch.randn(7, 3, generator=generator), "columns": torch.randn(3, 10, generator=generator),
             "both": torch.randn(5, 6, 2, generator=generator), "few": torch.randn(2, 3, generator=generator),
             "replicated": torch.randn(4, generator=generator), "half": torch.randn(6, 2, generator=generator).bfloat16()}
    plain = {"scalar": torch.tensor(3, dtype=torch.int64), "empty": torch.zeros(0, 3), "flags": torch.tensor([True, False]),
             "transposed": torch.arange(6.0).reshape(2, 3).t(), "eighths": torch.tensor([0.5, -2.0, 448.0]).to(torch.float8_e4m3fn),
             "complex": torch.tensor([1 + 2j, -3j], dtype=torch.complex64)}
    for dtype in (torch.float64, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8):
        plain[str(dtype)[6:]] = torch.arange(5).to(dtype)
    return whole, plain


def cut(whole):
    line = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
    how = {"rows": (line, [Shard(0)]), "columns": (line, [Shard(1)]), "both": (grid, [Shard(0), Shard(1)]), "few": (line, [Shard(0)]),
           "replicated": (line, [Replicate()]), "half": (grid, [Replicate(), Shard(0)])}
    return {name: distribute_tensor(tensor, *how[name]) for name, tensor in whole.items()}


def write(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29514")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    whole, plain = tensors()
    values = {"lr": 0.125, "step": 7, "note": "a text", "list": [1, None, True, {"x": -2.5}]}
    dcp.save({**cut(whole), **plain, "more": values}, checkpoint_id=f"{out}/sharded")
    model = {"model.embed.weight": whole["rows"], "lm_head.weight": whole["columns"]}
    moments = {"state": {name: {"exp_avg": tensor * 2} for name, tensor in model.items()}}
    cut_model = dict(zip(model, cut({"rows": whole["rows"], "columns": whole["columns"]}).values()))
    dcp.save({"model": cut_model, "optim": moments}, checkpoint_id=f"{out}/nested")
    dist.destroy_process_group()


def flat(tensor):
    if tensor.dtype == torch.complex64:
        tensor = torch.view_as_real(tensor)
    if tensor.dtype.is_floating_point:
        tensor = tensor.double()
    return tensor.reshape(-1).tolist()


def expect(out):
    whole, plain = tensors()
    with open(f"{out}/expected.jsonl", "w") as file:
        for name, tensor in {**whole, **plain}.items():
            print(json.dumps({"name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:], "elements": flat(tensor)}), file=file)


if __name__ == "__main__":
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    mp.spawn(write, (out,), RANKS)
    expect(out)
    print(torch.__version__)
