# SPDX-License-Identifier: Apache-2.0
"""Makes the five small models beside this file: python make.py DIRECTORY (torch 2.6.0, transformers 5.22.2, CPU).

They are random and have what the four first ones lack: odd numbers of heads, one key head, vocabularies that no mesh divides,
biases, other activations, scaled positions, sliding windows, older names, several files, 16-bit weights.
llama, qwen3, mixtral, gpt2, llama31, qwen3_moe and deepseek_v3 were made the same way from their families' own configuration
classes, with random weights in f32 and the published names (one tensor for each expert)."""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)


def older_experts(state):
    """Experts one by one, w1 gate, w3 up, w2 down, as first published."""
    out = {}
    for name, value in state.items():
        layer, _, rest = name.partition(".mlp.")
        place = f"{layer}.block_sparse_moe"
        if rest == "gate.weight":
            out[f"{place}.gate.weight"] = value
        elif rest == "experts.gate_up_proj":
            for e, both in enumerate(value):
                gate, up = both.chunk(2)
                out[f"{place}.experts.{e}.w1.weight"], out[f"{place}.experts.{e}.w3.weight"] = gate.clone(), up.clone()
        elif rest == "experts.down_proj":
            for e, down in enumerate(value):
                out[f"{place}.experts.{e}.w2.weight"] = down.clone()
        else:
            out[name] = value
    return out


def save(directory, state, files):
    if files == 1:
        save_file(state, f"{directory}/model.safetensors", metadata={"format": "pt"})
        return
    names, index = list(state), {}
    for i in range(files):
        part = {name: state[name] for name in names[i::files]}
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        save_file(part, f"{directory}/{file}", metadata={"format": "pt"})
        index.update({name: file for name in part})
    with open(f"{directory}/model.safetensors.index.json", "w") as out:
        json.dump({"metadata": {}, "weight_map": index}, out, indent=1)


def reference(model, tokens):
    def run():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        classes = logits.shape[-1]
        return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, classes), tokens[:, 1:].reshape(-1))

    logits, loss = run()
    loss.backward()
    out = {"tokens": tokens.tolist(), "loss": loss.item(), "logits_first_row_last_pos": logits[0, -1].tolist(),
           "logits_norm": logits.norm().item(),
           "grad_norm": {name: p.grad.norm().item() for name, p in model.named_parameters()}}
    model.zero_grad()
    options = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    optimizer, steps = torch.optim.AdamW(model.parameters(), **options), []
    for _ in range(10):
        _, loss = run()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.append([loss.item(), norm.item()])
        optimizer.step()
        optimizer.zero_grad()
    return out | {"adamw": options | {"clip": 1.0, "loss_and_total_norm": steps}}


def make(directory, model, batch, length, dtype=torch.float32, files=1, rename=lambda state: state, config=lambda c: c):
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(torch.randn_like(p) * 0.05)
            p.copy_(p.to(dtype).float())
    model.eval()
    os.makedirs(directory, exist_ok=True)
    state = {name: value.detach().to(dtype).clone() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    save(directory, rename(state), files)
    with open(f"{directory}/config.json", "w") as out:
        json.dump(config(model.config.to_dict()), out, indent=1)
    tokens = torch.randint(0, model.config.vocab_size, (batch, length + 1))
    with open(f"{directory}/reference.json", "w") as out:
        json.dump(reference(model, tokens), out)


def older_rope(config):
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type" if key == "rope_type" else key: value for key, value in rope.items()}
    return config


def main(root):
    torch.set_num_threads(1)
    common = dict(hidden_size=12, intermediate_size=14, num_hidden_layers=2, initializer_range=0.15,
                  attn_implementation="eager")
    torch.manual_seed(1)
    rope = dict(rope_theta=1e4, rope_type="longrope", short_factor=[1.0, 1.3], long_factor=[2.0, 3.5], factor=4.0,
                original_max_position_embeddings=8)
    make(f"{root}/llama_bias", LlamaForCausalLM(LlamaConfig(
        vocab_size=37, num_attention_heads=3, num_key_value_heads=3, max_position_embeddings=32, attention_bias=True,
        mlp_bias=True, hidden_act="gelu", rope_parameters=rope, **common)), 3, 17)
    torch.manual_seed(2)
    rope = dict(rope_theta=1e4, rope_type="dynamic", factor=2.0)
    make(f"{root}/llama_long", LlamaForCausalLM(LlamaConfig(
        vocab_size=41, num_attention_heads=6, num_key_value_heads=1, head_dim=4, max_position_embeddings=8,
        tie_word_embeddings=True, rope_parameters=rope, **common)), 5, 19, files=2, config=older_rope)
    torch.manual_seed(3)
    rope = dict(rope_theta=1e4, rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7,
                mscale_all_dim=1.1, truncate=False)
    make(f"{root}/qwen3_window", Qwen3ForCausalLM(Qwen3Config(
        vocab_size=43, num_attention_heads=5, num_key_value_heads=5, head_dim=6, max_position_embeddings=64,
        use_sliding_window=True, sliding_window=4, max_window_layers=1, rope_parameters=rope, **common)),
        3, 9, dtype=torch.bfloat16, files=3)
    torch.manual_seed(4)
    make(f"{root}/mixtral_window", MixtralForCausalLM(MixtralConfig(
        vocab_size=29, num_attention_heads=4, num_key_value_heads=1, head_dim=4, max_position_embeddings=32,
        num_local_experts=5, num_experts_per_tok=3, sliding_window=6, **common)), 3, 11, rename=older_experts)
    torch.manual_seed(5)
    make(f"{root}/gpt2_plain", GPT2LMHeadModel(GPT2Config(
        vocab_size=31, n_positions=16, n_embd=15, n_layer=2, n_head=5, n_inner=17, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, activation_function="quick_gelu", tie_word_embeddings=False, scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True, initializer_range=0.15, attn_implementation="eager")), 3, 7,
        dtype=torch.float16, rename=lambda state: {name.removeprefix("transformer."): v for name, v in state.items()})


main(sys.argv[1])
