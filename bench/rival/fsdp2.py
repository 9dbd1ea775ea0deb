#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sharded training on the cpu in PyTorch beside tessera's, in turns: fully_shard or DDP over gloo.

    bench/rival/fsdp2.py [--ranks 2] [--threads N] [--mode fsdp|ddp] [--layers 12] [--hidden 768]
                         [--vocab 32000] [--context 256] [--rows 2] [--pairs 7] [--tessera PROGRAM]

The same work as `tessera bench train --mesh fsdp=N --against replicate=N`: a Llama in f32, `rows` rows
of `context` tokens a rank, loss, backward, the total norm and clipping, AdamW. Each pair is a run of
the rival and, with --tessera, one of tessera after it; the medians of both and their spread are
printed. Without PyTorch it says so and exits with 3.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time

STEPS, WARM = 3, 2


def build(torch, a):
    nn, F = torch.nn, torch.nn.functional
    heads, head = a.hidden // 64, 64
    inner = (8 * a.hidden // 3 + 63) // 64 * 64
    angles = torch.outer(torch.arange(a.context).float(), 10000.0 ** (-torch.arange(0, head, 2).float() / head))
    cos, sin = angles.cos(), angles.sin()

    def rope(x):
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_a, self.norm_m = nn.RMSNorm(a.hidden), nn.RMSNorm(a.hidden)
            self.q, self.k, self.v, self.o = (nn.Linear(a.hidden, a.hidden, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(a.hidden, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, a.hidden, bias=False)

        def forward(self, x):
            rows, length, _ = x.shape
            h = self.norm_a(x)
            q, k, v = (w(h).view(rows, length, heads, head).transpose(1, 2) for w in (self.q, self.k, self.v))
            y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(rows, length, -1))
            h = self.norm_m(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(a.vocab, a.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
            self.norm, self.head = nn.RMSNorm(a.hidden), nn.Linear(a.hidden, a.vocab, bias=False)

        def forward(self, ids, labels):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())

    return Net()


def worker(a):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    net = build(torch, a)
    if a.mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (a.ranks,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    else:
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    ids = torch.randint(a.vocab, (a.rows, a.context))
    times = []
    for _ in range(WARM + STEPS):
        dist.barrier()
        begin = time.perf_counter()
        net(ids, ids).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        times.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print("tokens/s", a.ranks * a.rows * a.context / statistics.median(times[WARM:]), flush=True)
    dist.destroy_process_group()


def rival(a):
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                       WORLD_SIZE=str(a.ranks), OMP_NUM_THREADS=str(a.threads))
    command = [sys.executable, __file__, "--worker"] + sys.argv[1:]
    ranks = [subprocess.Popen(command, env=dict(environment, RANK=str(r)), stdout=subprocess.PIPE, text=True)
             for r in range(a.ranks)]
    said = [rank.communicate()[0] for rank in ranks]
    found = re.search(r"tokens/s ([0-9.]+)", said[0])
    if not found or any(rank.returncode for rank in ranks):
        sys.exit("fsdp2: a rank failed")
    return float(found.group(1))


def ours(a):
    mesh = "fsdp" if a.mode == "fsdp" else "replicate"
    command = [a.tessera, "bench", "train", "--mesh", f"{mesh}={a.ranks}", "--against", f"replicate={a.ranks}",
               "--pairs", "3", "--layers", str(a.layers), "--hidden", str(a.hidden), "--vocab", str(a.vocab),
               "--context", str(a.context), "--rows", str(a.ranks * a.rows)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r": tokens\s+([0-9.,]+)", text).group(1).replace(",", ""))


def main():
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("ranks", 2), ("threads", 0), ("layers", 12), ("hidden", 768), ("vocab", 32000),
                        ("context", 256), ("rows", 2), ("pairs", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--mode", choices=("fsdp", "ddp"), default="fsdp")
    parser.add_argument("--tessera", help="the program tessera, to run in turns with the rival")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.threads = a.threads or max(1, cores // a.ranks)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("fsdp2: there is no PyTorch here")
        return 3
    if a.worker:
        worker(a)
        return 0
    rates, other = [], []
    for _ in range(a.pairs):
        rates.append(rival(a))
        if a.tessera:
            other.append(ours(a))
    print(f"PyTorch {a.mode}={a.ranks} x {a.threads} threads: {statistics.median(rates):.1f} tokens/s, "
          f"{min(rates):.1f} to {max(rates):.1f}, {a.pairs} runs")
    if other:
        ratio = [mine / theirs for mine, theirs in zip(other, rates)]
        print(f"tessera {a.mode}={a.ranks}: {statistics.median(other):.1f} tokens/s, {min(other):.1f} to {max(other):.1f}")
        print(f"ratio: {statistics.median(ratio):.2f}, {min(ratio):.2f} to {max(ratio):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
