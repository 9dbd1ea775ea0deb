#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Random rows through `tessera plan --batch`: meshes with axes of one rank, extents 0, 1 and odd ones, every kind of
# placement and dtype, two meshes, budgets, every planner. Each answer is executed and compared; what is refused is
# refused for a reason that is known here; auto never receives more than any other planner, direct exactly the bound.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
command -v python3 > /dev/null 2>&1 || skip_all "skipped: no python3"
seed=${TESSERA_TEST_SEED:-1}

cat > "$work/rows.py" << 'PY'
import json, random, sys
r = random.Random(int(sys.argv[1]))
DTYPES = "f32 f64 bf16 f16 i64 i32 i16 i8 u8 bool c64 c128".split()
KINDS = "sum avg min max prod and or band bor".split()
PLANNERS = "auto auto auto collectives direct greedy graph".split()
TOPOLOGIES = "reference-cpu threads 8xh100 ethernet torus".split()

def mesh(most):
    while True:
        sizes = [r.choice([1, 1, 2, 2, 3, 4, 5, 7, 8]) for _ in range(r.randint(1, 4))]
        count = 1
        for size in sizes:
            count *= size
        if count <= most:
            return sizes

def ragged(n, extent):
    ends = [0] + sorted(r.randint(0, extent) for _ in range(n - 1)) + [extent]
    return ",".join(str(ends[i + 1] - ends[i]) for i in range(n))

def cut(n, extent, dim, alone):
    kind = r.random()
    if kind < 0.15:
        return f"SS({dim},{r.randint(1, 4)})"
    if kind < 0.23:
        return f"HT({dim})"
    if kind < 0.28:
        return f"S({dim}/{r.choice([2, 3, 4])})"
    if kind < 0.37 and alone:
        return f"RS({dim}:{ragged(n, extent)})"
    return f"S({dim})"

def placements(sizes, shape, partial):
    out, axes_of = [], {}
    kind, terms = r.choice(KINDS + ["norm:1", "norm:2", "norm:3"]), r.random() < partial
    for axis, _ in enumerate(sizes):
        choice = r.random()
        if terms and 0.3 <= choice < 0.5:
            mixed = kind in ("sum", "avg") and r.random() < 0.3
            out.append(f"P({r.choice(['sum', 'avg']) if mixed else kind})")
        elif choice < 0.3 or not shape:
            out.append("R")
        else:
            axes_of.setdefault(r.randrange(len(shape)), []).append(axis)
            out.append("")
    for dim, axes in axes_of.items():
        for i, axis in enumerate(axes):
            out[axis] = cut(sizes[axis], shape[dim], dim, i == 0)
        if len(axes) > 1 and r.random() < 0.5 and not any(out[k].startswith("RS") for k in axes):
            for axis, place in zip(axes, r.sample(range(len(axes)), len(axes))):
                out[axis] += f"[{place}]"
    if len(shape) >= 2 and r.random() < 0.06:  # a cut over two dims stands alone
        out = [p if p.startswith("P") else "R" for p in out]
        dim = r.randrange(len(shape) - 1)
        out[r.randrange(len(out))] = f"S({dim}-{dim + 1})"
    return out

for _ in range(int(sys.argv[2])):
    sizes = mesh(16)
    shape = [r.choice([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 24])
             for _ in range(r.choice([0, 1, 1, 2, 2, 2, 3, 3]))]
    row = {"mesh": sizes, "tensor": shape, "dtype": r.choice(DTYPES), "src": placements(sizes, shape, 0.45)}
    if r.random() < 0.15:
        row["dst_mesh"] = mesh(12)
    row["dst"] = placements(row.get("dst_mesh", sizes), shape, 0.2)
    for axis in range(len(sizes)) if "dst_mesh" not in row else []:
        if row["src"][axis].startswith("P") and r.random() < 0.2:
            row["dst"][axis] = row["src"][axis]
        elif row["dst"][axis].startswith("P") and not row["src"][axis].startswith("P") and r.random() < 0.7:
            row["src"][axis] = "R"
    if r.random() < 0.15:
        row["budget"] = r.choice([1, 16, 64, 100, 256, 1000, 4096, 100000])
    row["planner"], row["topology"] = r.choice(PLANNERS), r.choice(TOPOLOGIES)
    print(json.dumps(row))
PY

cat > "$work/judge.py" << 'PY'
import json, subprocess, sys
tessera, rows = sys.argv[1], [json.loads(line) for line in open(sys.argv[2])]
REASONS = ("knows plain shards", "need source and target on one mesh", "needs source and target on one mesh",
           "does not know cuts over several dims", "has no meaning for", "cannot go from", "makes this transfer",
           "the budget is", "is too small", "cannot be mixed", "would mix kinds", "reaches the target",
           "expected positions", "cannot share", "add up to")

def ask(requests, *options):
    text = "".join(json.dumps(q) + "\n" for q in requests)
    run = subprocess.run([tessera, "plan", *options, "--batch", "-"], input=text, capture_output=True, text=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(requests), f"{len(answers)} answers to {len(requests)} rows: {run.stderr}"
    return answers

problems = []
for row, a in zip(rows, ask(rows, "--check")):
    if "error" in a:
        if not any(reason in a["error"] for reason in REASONS):
            problems.append((a["error"], row))
        continue
    received, bound = a["bytes_received"], a["bytes_bound"]
    direct = a["family"] in ("direct", "hierarchical")
    if a["check"] != "ok":
        problems.append((a["check"], row))
    if received < bound or (direct and received != bound) or received != sum(s["bytes_received"] for s in a["steps"]):
        problems.append((f"{received} bytes, the bound is {bound}", row))
plain = [{k: v for k, v in row.items() if k != "budget"} for row in rows if "dst_mesh" not in row]
answer = {p: ask([dict(row, planner=p, topology="reference-cpu") for row in plain])
          for p in ("auto", "greedy", "graph", "collectives", "direct")}
for i, row in enumerate(plain):
    got = {p: a[i]["bytes_received"] for p, a in answer.items() if "error" not in a[i]}
    if "auto" in got and got["auto"] > min(
            got.get(p, got["auto"]) for p in ("greedy", "graph", "collectives")):
        problems.append((f"auto receives more: {got}", row))
for what, row in problems[:5]:
    print(what, json.dumps(row))
print(f"{len(rows)} rows, {len(problems)} problems")
sys.exit(1 if problems else 0)
PY

python3 "$work/rows.py" "$seed" 1500 > "$work/rows"
succeeds "1500 random rows, seed $seed" python3 "$work/judge.py" "$tessera" "$work/rows"
finish
