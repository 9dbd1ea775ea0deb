#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `tessera bench attention` measures, of PyTorch's scaled_dot_product_attention on the CPU.

    python3 bench/rival/attention_torch.py [threads]

Prints one JSON object a line: name, GFLOP/s by pairs that are seen, and the ratio to a product of 4,096 of the same
dtype in the same run. Medians of at least 7 runs.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as functional


def median(run, times=7):
    run()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main():
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    length, heads = 4096, 2
    pairs = heads * length * (length + 1) // 2
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(4096, 4096).to(dtype) for _ in range(2))
        product = 2 * 4096**3 / median(lambda: a @ b, 3)
        name = str(dtype).split(".")[1]
        print(json.dumps({"name": f"product {name} 4096", "value": product / 1e9}))
        for depth in (64, 128):
            q, k, v, d = (torch.randn(1, heads, length, depth).to(dtype) for _ in range(4))
            forward = median(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True))
            x = [t.clone().requires_grad_() for t in (q, k, v)]
            out = functional.scaled_dot_product_attention(*x, is_causal=True)
            backward = median(lambda: torch.autograd.grad(out, x, d, retain_graph=True))
            for what, seconds, each in (("forward", forward, 4), ("backward", backward, 10)):
                rate = each * depth * pairs / seconds
                print(json.dumps({"name": f"causal {what} {name} T={length} D={depth}", "value": rate / 1e9,
                                  "ratio": rate / product}))


main()
