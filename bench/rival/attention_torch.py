#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `tessera bench attention` measures, of PyTorch's scaled_dot_product_attention on the CPU.

    python3 bench/rival/attention_torch.py [threads [length]]

Prints one JSON object a line: name, value (GFLOP/s by pairs that are seen), and the ratio to a product of 4,096 of the
same dtype in the same run; then, where it runs, flex attention with the masks of the bench: calls a second. Names are
those of the bench. Medians of up to 7 runs.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as functional


def median(run, times=7, seconds=5):
    """Of so many runs after a first one, or of those that begin within the time: some are very slow, the first alone."""
    started, taken = time.perf_counter(), []
    for i in range(times + 1):
        begin = time.perf_counter()
        if i > 0 and begin - started > seconds:
            break
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:] or taken)


def flex(length, heads, depth):
    """Masks of which only some blocks are computed. It needs a compiler."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def documents(*lengths):
        return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))

    even, uneven = documents(1024, 1024, 1024, 1024), documents(300, 1700, 96, 2000)
    masks = {
        "window(511, 0)": lambda b, h, q, k: (k <= q) & (k >= q - 511),
        "causal & documents(1024, 1024, 1024, 1024)": lambda b, h, q, k: (k <= q) & (even[q] == even[k]),
        "causal & documents(300, 1700, 96, 2000)": lambda b, h, q, k: (k <= q) & (uneven[q] == uneven[k]),
        "prefix(256) | window(255, 0)": lambda b, h, q, k: (k < 256) | ((k <= q) & (k >= q - 255)),
    }
    run = torch.compile(flex_attention)
    q, k, v = (torch.randn(1, heads, length, depth) for _ in range(3))
    for name, mask in masks.items():
        blocks = create_block_mask(mask, None, None, length, length, device="cpu")
        with torch.no_grad():
            seconds = median(lambda: run(q, k, v, block_mask=blocks))
        print(json.dumps({"name": name, "value": 1 / seconds}), flush=True)


def main():
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    length, heads = int(sys.argv[2]) if len(sys.argv) > 2 else 4096, 2
    pairs = heads * length * (length + 1) // 2
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.randn(4096, 4096).to(dtype) for _ in range(2))
        product = 2 * 4096**3 / median(lambda: a @ b, 3)
        name = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
        print(json.dumps({"name": f"product {name} 4096", "value": product / 1e9}), flush=True)
        for depth in (64, 128):
            q, k, v, d = (torch.randn(1, heads, length, depth).to(dtype) for _ in range(4))
            forward = median(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True))
            x = [t.clone().requires_grad_() for t in (q, k, v)]
            out = functional.scaled_dot_product_attention(*x, is_causal=True)
            backward = median(lambda: torch.autograd.grad(out, x, d, retain_graph=True))
            for what, seconds, each in (("forward", forward, 4), ("backward", backward, 10)):
                rate = each * depth * pairs / seconds
                print(json.dumps({"name": f"causal {what} {name} T={length} D={depth}", "value": rate / 1e9,
                                  "ratio": rate / product}), flush=True)
    try:
        if length == 4096:
            flex(length, heads, 64)
    except Exception as error:  # no compiler, or not for this machine
        print(json.dumps({"name": "flex", "error": str(error).splitlines()[0]}))


main()
