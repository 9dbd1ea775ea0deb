# SPDX-License-Identifier: Apache-2.0
"""Steps of torch.optim.Muon: python muon.py > muon.json (torch 2.15.0, CPU, seed 7; no part of the tests).

Of each matrix: what it was (`begin`), its gradients, and what it is after these steps, once as the optimiser is (`end`: float32,
Newton-Schulz in bfloat16), once with a cast to float64 instead, all in float64 (`exact`): the algorithm without rounding."""
import json

import torch

OPTIONS = {"lr": 0.05, "weight_decay": 0.1, "momentum": 0.95}
STEPS = 3
generator = torch.Generator().manual_seed(7)


def run(begin, slopes, adjust, dtype):
    w = torch.nn.Parameter(begin.to(dtype, copy=True))
    optimizer = torch.optim.Muon([w], adjust_lr_fn=adjust, **OPTIONS)
    for slope in slopes:
        w.grad = slope.to(dtype, copy=True)
        optimizer.step()
    return w.detach().double()


def flat(x):
    return x.flatten().tolist()


rows = []
for shape, adjust in [((4, 4), "match_rms_adamw"), ((3, 8), "match_rms_adamw"), ((9, 4), "original"), ((5, 2), "match_rms_adamw")]:
    begin = torch.randn(shape, generator=generator).double() * 0.5
    slopes = [torch.randn(shape, generator=generator).double() for _ in range(STEPS)]
    end = run(begin, slopes, adjust, torch.float32)
    narrow, torch.bfloat16 = torch.bfloat16, torch.float64  # what the optimiser casts to
    exact = run(begin, slopes, adjust, torch.float64)
    torch.bfloat16 = narrow
    rows.append({"shape": list(shape), "adjust": adjust, "begin": flat(begin), "slopes": [flat(s) for s in slopes],
                 "end": flat(end), "exact": flat(exact)})
print(json.dumps({"torch": torch.__version__.split("+")[0], **OPTIONS, "rows": rows}))
