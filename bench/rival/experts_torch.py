#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `tessera bench experts` measures end to end, of PyTorch on the CPU: rows sorted by expert, a loop of products over
the experts, results added to their tokens; one process with all threads, all experts in it.

    python3 bench/rival/experts_torch.py THREADS EXPERTS CHOICES TOKENS WIDTH INNER

Prints one JSON object: name, seconds of a forward (median of 3 after one).
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as functional


def layer(x, which, weight, both, down):
    flat = which.flatten()
    order = torch.argsort(flat, stable=True)
    token = order // which.shape[1]
    ends = torch.cumsum(torch.bincount(flat, minlength=both.shape[0]), 0).tolist()
    rows, made, begin = x[token], torch.empty(len(order), x.shape[1]), 0
    for expert, end in enumerate(ends):
        if end > begin:
            gate, up = (rows[begin:end] @ both[expert].T).chunk(2, -1)
            made[begin:end] = (functional.silu(gate) * up) @ down[expert].T
        begin = end
    made *= weight.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add_(0, token, made)


def main():
    threads, experts, choices, tokens, width, inner = (int(a) for a in sys.argv[1:7])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    x = torch.randn(tokens, width)
    which = torch.rand(tokens, experts).topk(choices, 1).indices
    weight = torch.rand(tokens, choices)
    both, down = torch.randn(experts, 2 * inner, width), torch.randn(experts, width, inner)
    taken = []
    with torch.no_grad():
        for _ in range(4):
            begin = time.perf_counter()
            layer(x, which, weight, both, down)
            taken.append(time.perf_counter() - begin)
    print(json.dumps({"name": "experts, PyTorch", "seconds": statistics.median(taken[1:])}))


main()
