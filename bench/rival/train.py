#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps in PyTorch, written for it: what `tessera bench train --model NAME` is compared with.

    bench/rival/train.py [--model tiny|134m|1b] [--seconds 2] [--warmup 8] [--mode graphs|default]
                         [--optimizer adamw|muon] [--json]

The same work: f32 weights, gradients and moments, products in bf16 (autocast), causal attention
without a mask tensor, the loss inside the compiled region, the total norm and clipping, fused AdamW,
one update a batch. `muon`: torch.optim.Muon for the blocks' matrices, AdamW for the others. `graphs` compiles with CUDA graphs. Without PyTorch or a GPU it says so and exits
with 3.
"""
import argparse
import json
import sys
import time

SIZES = {  # layers, hidden, heads, key heads, inner, vocabulary, rows, context
    "tiny": (4, 256, 4, 4, 768, 4096, 4, 256),
    "134m": (12, 768, 12, 12, 2048, 32000, 16, 1024),
    "1b": (22, 2048, 32, 4, 5632, 32000, 4, 2048),
}


def build(torch, size):
    nn, F = torch.nn, torch.nn.functional
    layers, hidden, heads, groups, inner, vocab, _, context = size
    head = hidden // heads

    angles = torch.outer(torch.arange(context).float(), 10000.0 ** (-torch.arange(0, head, 2).float() / head))
    cos, sin = angles.cos().cuda(), angles.sin().cuda()

    def rope(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return F.rms_norm(x.float(), (hidden,), self.weight, 1e-5).to(torch.bfloat16)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_a, self.norm_m = Norm(), Norm()
            self.q = nn.Linear(hidden, heads * head, bias=False)
            self.k = nn.Linear(hidden, groups * head, bias=False)
            self.v = nn.Linear(hidden, groups * head, bias=False)
            self.o = nn.Linear(heads * head, hidden, bias=False)
            self.gate = nn.Linear(hidden, inner, bias=False)
            self.up = nn.Linear(hidden, inner, bias=False)
            self.down = nn.Linear(inner, hidden, bias=False)

        def forward(self, x):
            rows, length, _ = x.shape
            h = self.norm_a(x)
            q = rope(self.q(h).view(rows, length, heads, head).transpose(1, 2))
            k = rope(self.k(h).view(rows, length, groups, head).transpose(1, 2))
            v = self.v(h).view(rows, length, groups, head).transpose(1, 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups != heads)
            x = x + self.o(y.transpose(1, 2).reshape(rows, length, heads * head))
            h = self.norm_m(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocab, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = Norm()
            self.head = nn.Linear(hidden, vocab, bias=False)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids).to(torch.bfloat16)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.float().view(-1, vocab), labels.view(-1))

    return Llama().cuda()


def optimizers(torch, model, kind):
    others = dict(lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if kind == "adamw":
        return [torch.optim.AdamW(model.parameters(), **others)]
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    inside = {id(p) for p in matrices}
    return [torch.optim.Muon(matrices, lr=1e-4, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW([p for p in model.parameters() if id(p) not in inside], **others)]


def run(torch, name, seconds, warmup, mode, kind):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(1)
    size = SIZES[name]
    vocab, rows, context = size[5], size[6], size[7]
    model = build(torch, size)
    updates = optimizers(torch, model, kind)
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs" if mode == "autotune" else
                             "reduce-overhead" if mode == "graphs" else "default")
    batches = [torch.randint(vocab, (2, rows, context), device="cuda") for _ in range(4)]
    params = list(model.parameters())

    def step(n):
        ids, labels = batches[n % 4]
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
        for update in updates:
            update.step()
            update.zero_grad(set_to_none=True)
        return loss

    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        for n in range(warmup):
            loss = step(n)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin, count = time.perf_counter(), 0
        while True:
            for _ in range(10):
                loss = step(count)
                count += 1
            torch.cuda.synchronize()
            spent = time.perf_counter() - begin
            if spent >= seconds:
                break
    layers, hidden, heads, groups, inner = size[:5]
    head = hidden // heads
    weights = layers * (hidden * head * (2 * heads + 2 * groups) + 3 * hidden * inner) + hidden * vocab
    flops = 6 * weights + 6 * layers * hidden * context
    rate = count * rows * context / spent
    return {"rival": f"torch {torch.__version__} {mode} {kind}", "model": name, "tokens_per_second": rate,
            "step_ms": 1e3 * spent / count, "tflops": rate * flops * 1e-12,
            "peak_MiB": torch.cuda.max_memory_allocated() / 2**20, "loss": loss.item()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="134m", choices=sorted(SIZES))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--warmup", type=int, default=8)
    parser.add_argument("--mode", default="graphs", choices=["graphs", "default", "autotune"])
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "muon"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("rival: PyTorch was not found", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("rival: PyTorch sees no GPU", file=sys.stderr)
        return 3
    out = run(torch, options.model, options.seconds, options.warmup, options.mode, options.optimizer)
    if options.json:
        print(json.dumps(out))
    else:
        print("{rival}, {model}: {tokens_per_second:.0f} tokens/s, {step_ms:.2f} ms a step, "
              "{tflops:.0f} TFLOP/s, peak {peak_MiB:.0f} MiB, loss {loss:.4f}".format(**out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
