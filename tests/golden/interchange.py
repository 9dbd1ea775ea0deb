# SPDX-License-Identifier: Apache-2.0
"""Models there and back between tessera and the transformers library: python interchange.py TESSERA MODELS WORK
(torch 2.15.0, transformers 5.22.2, CPU; no part of the tests, which have no such libraries).

For each golden model: converted by `tessera ckpt convert` to its own format and to sharded published files, it loads in
transformers with the logits of the original, bit for bit; saved by transformers in shards it loads in tessera, equal by
`tessera ckpt diff` where names are the same, and `tessera verify model` agrees with the reference. Then models that `tessera
train` made: their states, converted, are loaded by transformers, which writes a reference that tessera must meet."""
import json
import os
import shutil
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM

tessera, models, work = sys.argv[1:4]
torch.set_num_threads(1)


def run(*arguments):
    done = subprocess.run([tessera, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tessera {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                experts_implementation="eager").eval()


def logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def reference(model, tokens):
    out = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), tokens[:, 1:].reshape(-1))
    loss.backward()
    return {"tokens": tokens.tolist(), "loss": loss.item(), "logits_first_row_last_pos": out[0, -1].tolist(),
            "logits_norm": out.norm().item(),
            "grad_norm": {name: p.grad.norm().item() for name, p in model.named_parameters()},
            "adamw": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0,
                      "loss_and_total_norm": []}}


def there_and_back(name):
    source, place = f"{models}/{name}", f"{work}/{name}"
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    with open(f"{source}/reference.json") as file:
        tokens = torch.tensor(json.load(file)["tokens"])[:, :-1]
    run("ckpt", "convert", source, f"{place}/ours", "--to", "tessera")
    run("ckpt", "convert", f"{place}/ours", f"{place}/hf", "--to", "hf", "--shard-size", "2KiB")
    original, converted = load(source), load(f"{place}/hf")
    assert torch.equal(logits(original, tokens), logits(converted, tokens)), f"{name}: other logits"
    original.save_pretrained(f"{place}/saved", max_shard_size="4KB")
    shutil.copy(f"{source}/reference.json", f"{place}/saved")
    shutil.copy(f"{source}/reference.json", f"{place}/hf")
    for directory in ("saved", "hf", "ours"):
        print(f"{name} {directory}: {run('verify', 'model', f'{place}/{directory}', '--mesh', 'dp=2').splitlines()[-1]}")
    print(f"{name}: equal logits both ways")


def trained(family, more):
    place = f"{work}/trained-{family}"
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    with open(f"{place}/text.txt", "w") as file:
        file.write("The quick brown fox jumps over the lazy dog. " * 40)
    with open(f"{place}/a.ini", "w") as file:
        file.write(f"[model]\nfamily = {family}\nhidden = 16\nlayers = 2\nheads = 2\n{more}\n[data]\npath = text.txt\ncontext = 16\n"
                   f"[train]\nsteps = 5\noutput = {place}/run\nbatch = 4\n[parallel]\nmesh = dp=2, tp=2\n[log]\nsample = 0\nreport = 0\n")
    run("train", f"{place}/a.ini", "--quiet")
    run("ckpt", "convert", f"{place}/run/state/step-5", f"{place}/hf", "--to", "hf")
    model = load(f"{place}/hf")
    torch.manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (3, 13))
    with open(f"{place}/hf/reference.json", "w") as file:
        json.dump(reference(model, tokens), file)
    print(f"trained {family}: {run('verify', 'model', f'{place}/hf', '--mesh', 'dp=1').splitlines()[-1]}")


for name in sorted(os.listdir(models)):
    if os.path.isdir(f"{models}/{name}"):
        there_and_back(name)
for family, more in (("llama", ""), ("llama", "tied = 1"), ("qwen3", ""), ("gpt2", ""),
                     ("mixtral", "experts = 4\nexperts_per_token = 2"), ("qwen3_moe", "experts = 4\nexperts_per_token = 2"),
                     ("deepseek_v3", "experts = 4\nexperts_per_token = 2\nexpert_width = 8\nshared_experts = 1\nexpert_groups = 2\n"
                      "groups_per_token = 1\nhead_dim = 4\nkv_rank = 6\nq_rank = 5\nplain_dim = 4\nvalue_dim = 4")):
    trained(family, more)
