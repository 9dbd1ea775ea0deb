#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of processes over MPI beside those of threads, in turns.

    bench/rival/engines.py [--mesh fsdp=2] [--ranks 2] [--launcher "mpirun --bind-to none"] [--pairs 7]
                           [--tessera PROGRAM] [options of `tessera bench train`]

Each pair is a run of `tessera bench train --mesh MESH` whose ranks are threads and one whose ranks are
processes of the launcher, of three steps each after three that are not counted; each goes first in
turn. Printed are the medians of tokens/s, the median of the ratios of pairs with their spread, and
whether it is 0.90 or more.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys


def tokens(command, mesh):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"engines: {shlex.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}")
    text = done.stdout[done.stdout.index("{"):]
    rows = json.JSONDecoder().raw_decode(text)[0]["results"]
    return next(row["value"] for row in rows if row["name"] == f"{mesh}: tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", default="fsdp=2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", default="mpirun --bind-to none")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tessera", default="build/release/bin/tessera")
    a, rest = parser.parse_known_args()
    work = [a.tessera, "bench", "train", "--mesh", a.mesh, "--against", f"replicate={a.ranks}",
            "--pairs", "3", "--json", *rest]
    ways = {"threads": work, "processes": [*shlex.split(a.launcher), "-n", str(a.ranks), *work]}
    rates = {name: [] for name in ways}
    for pair in range(a.pairs):
        order = list(ways) if pair % 2 == 0 else list(ways)[::-1]
        for name in order:
            rates[name].append(tokens(ways[name], a.mesh))
    ratios = sorted(p / t for p, t in zip(rates["processes"], rates["threads"]))
    for name, values in rates.items():
        print(f"{a.mesh}, {name}: {statistics.median(values):.1f} tokens/s")
    middle = statistics.median(ratios)
    print(f"processes over threads, median of {a.pairs} pairs: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), "
          f"wanted 0.90: {'yes' if middle >= 0.90 else 'no'}")


if __name__ == "__main__":
    main()
