# SPDX-License-Identifier: Apache-2.0
"""Calls like those of tests/golden/oprules.jsonl with other shapes, meshes, placements, attributes and dtypes.

  op_vary.py make SEED COUNT          rows for `tessera op --batch`, with "check"
  op_vary.py judge ROWS ANSWERS       every row has an answer and its check says ok; a form in place may be refused
                                      if its target would have to leave its layout
"""
import json
import random
import sys

EXTENTS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13]
MESHES = [[1], [2], [3], [4], [5], [8], [2, 2], [2, 3], [3, 2], [1, 4], [2, 2, 2]]
ELEMENTWISE = ("neg relu gelu silu exp rsqrt sigmoid tanh abs clone zeros_like hardswish hardsigmoid mish selu relu6 "
               "softsign erf log1p floor round sign isnan logical_not count_nonzero any all").split()
PAIRS = ("add sub mul div maximum add_ mul_ minimum atan2 fmod remainder floor_divide fmax fmin heaviside hypot "
         "logaddexp eq gt le logical_and swiglu copysign").split()
NUMBERS = "gt_scalar le_scalar eq_scalar remainder_scalar rsub_scalar div_scalar celu hardshrink leaky_relu elu".split()
LOSSES = "mse_loss l1_loss smooth_l1_loss huber_loss bce bce_with_logits kl_div".split()
REDUCTIONS = "sum mean amax amin prod logsumexp var std".split()
REALS_ONLY = "dropout histc layer_norm rms_norm std var group_norm conv avg_pool max_pool".split() + \
    "nll_loss cross_entropy".split() + LOSSES
ORDERED = "amax amin argmax clamp log_softmax softmax sort topk logsumexp max min cummax".split()
MASKS = {"where": 0, "masked_fill": 1}
NO_COMPLEX = ORDERED + NUMBERS + "maximum".split() + PAIRS[7:] + ELEMENTWISE
NO_BOOL = "scatter_add index_add index_put".split()
EQUATIONS = ["bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd", "ij,jk->ik", "ij->ji", "ij->", "i,j->ij", "ij,ij->ij",
             "abc,cd->abd", "bij,bij->b", "ii->i", "ii->", "ab,bc,cd->ad", "ij,j->i", "ij,kj"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def extent(self, least=0):
        return max(self.r.choice(EXTENTS), least)

    def shape(self, ndims=(1, 2, 2, 2, 3, 4), least=0):
        return [self.extent(least) for _ in range(self.r.choice(ndims))]

    def fewer(self, shape):
        """A shape that broadcasts to the given one."""
        out = [1 if self.r.random() < 0.2 else n for n in shape]
        return out[self.r.randrange(len(out) + 1):] if self.r.random() < 0.2 else out

    def dim(self, ndim):
        return self.r.randrange(-ndim, ndim)

    def dims(self, ndim):
        some = self.r.sample(range(ndim), self.r.randrange(0, ndim + 1))
        return [d - ndim if self.r.random() < 0.3 else d for d in some]

    # ---- families: shapes and attributes ----------------------------------------------------------------

    def reduction(self, op):
        shape = self.shape((1, 2, 2, 3), 1 if op in ("amax", "amin") else 0)
        attrs = {"dims": self.dims(len(shape)), "keepdim": self.r.random() < 0.5}
        if op in ("var", "std"):
            attrs["correction"] = self.r.choice([0, 1])
        return [shape], attrs

    def along(self, op):
        shape = self.shape((1, 2, 3), 1 if op in ("argmax", "select", "max", "min") else 0)
        d = self.dim(len(shape))
        n = shape[d]
        attrs = {"dim": d}
        if op == "sort":
            attrs["descending"] = self.r.random() < 0.5
        if op == "topk":
            attrs["k"] = self.r.randint(0, n)
        if op == "select":
            attrs["index"] = self.r.randrange(-n, n)
        if op == "slice":
            attrs.update(start=self.r.randint(-n - 2, n + 2), end=self.r.choice([self.r.randint(-n - 2, n + 2), None]),
                         step=self.r.choice([1, 1, 2, 3]))
        return [shape], attrs

    def product(self, op):
        m, k, n = self.extent(), self.extent(), self.extent()
        batch = [min(x, 4) for x in self.shape((0, 0, 1, 2))]
        if op == "addmm":
            bias = self.r.choice([[n], [m, n], [1, n], [m, 1], [1]])
            return [bias, [m, k], [k, n]], self.r.choice([{}, {"alpha": 0.5, "beta": 2.0}, {"beta": 0.0}])
        if op == "linear":
            return [batch + [k], [n, k]] + ([[n]] if self.r.random() < 0.5 else []), {}
        if op == "dot":
            return [[k], [k]], {}
        return self.r.choice([[batch + [m, k], batch + [k, n]], [batch + [m, k], [k, n]], [[m, k], batch + [k, n]],
                              [batch + [m, k], [k]], [[k], batch + [k, n]], [[k], [k]]]), {}

    def equation(self):
        text = self.r.choice(EQUATIONS)
        extent = {c: min(self.extent(), 8) for c in text if c.isalpha()}
        return [[extent[c] for c in one] for one in text.split("->")[0].split(",")], {"equation": text}

    def norm(self, op):
        shape = self.shape((1, 2, 3, 3))
        inner = shape[-self.r.randint(1, len(shape)):]
        count = self.r.choice([0, 1, 2] if op == "layer_norm" else [0, 1])
        return [shape] + [inner] * count, {"normalized": inner, "eps": self.r.choice([1e-5, 1e-3])}

    def joined(self, op):
        shape = self.shape((1, 2, 3))
        count = self.r.choice([1, 2, 2, 3, 4])
        if op == "stack":
            return [shape] * count, {"dim": self.r.randrange(-len(shape) - 1, len(shape) + 1)}
        d = self.dim(len(shape))
        parts = [list(shape) for _ in range(count)]
        for part in parts:
            part[d] = self.extent()
        return parts, {"dim": d}

    def reshaped(self):
        shape = self.shape((1, 2, 3))
        left = 1
        for n in shape:
            left *= n
        if left == 0:
            return [shape], {"shape": [0, 3]}
        target = []
        for _ in range(self.r.choice([0, 1, 2, 3])):
            target.append(self.r.choice([d for d in range(1, left + 1) if left % d == 0]))
            left //= target[-1]
        target.append(left)
        self.r.shuffle(target)
        if self.r.random() < 0.3:
            target[self.r.randrange(len(target))] = -1
        return [shape], {"shape": target}

    def view(self, op):
        shape = self.shape((1, 2, 3, 4))
        ndim = len(shape)
        if op == "permute":
            order = list(range(ndim))
            self.r.shuffle(order)
            return [shape], {"dims": order}
        if op == "transpose":
            return [shape], {"dim0": self.dim(ndim), "dim1": self.dim(ndim)}
        if op == "unsqueeze":
            return [shape], {"dim": self.r.randrange(-ndim - 1, ndim + 1)}
        if op == "squeeze":
            d = self.dim(ndim)
            shape[d] = self.r.choice([1, 1, shape[d]])
            return [shape], {"dim": d}
        shape = [1 if self.r.random() < 0.4 else n for n in shape]
        lead = [self.r.choice([1, 2, 4])] if ndim < 4 and self.r.random() < 0.3 else []
        return [shape], {"shape": lead + [self.r.choice([1, 2, 3, 5]) if n == 1 else self.r.choice([n, -1])
                                          for n in shape]}

    def moved(self, op):
        shape = self.shape((1, 2, 3))
        dims = self.dims(len(shape))
        if op == "flip":
            return [shape], {"dims": dims}
        return [shape], {"dims": dims, "shifts": [self.r.randint(-14, 14) for _ in dims]}

    def numbered(self, op):
        """Elementwise with numbers as attributes."""
        r = self.r
        choices = {
            "mul_scalar": [{"value": v} for v in (2.0, -1.5, 0.0, 1.0)],
            "add_scalar": [{"value": v} for v in (2.0, -1.5, 0.0)],
            "clamp": [{"min": -1.0, "max": 1.0}, {"min": 0.0, "max": None}, {"max": 0.5}],
            "pow": [{"exponent": v} for v in (2.0, 3.0, 0.5, -1.0, 0.0)],
            "cast": [{"dtype": v} for v in ("bf16", "f32", "f64", "f16", "i64", "bool")],
            "dropout": [{"p": v} for v in (0.0, 0.5, 1.0)],
            "histc": [{"bins": b, "min": 0.0, "max": m} for b in (1, 5, 8) for m in (1.0, 2.0)],
            "tril": [{"diagonal": d} for d in range(-3, 4)],
        }
        return [self.shape((2, 2, 3) if op == "tril" else (1, 2, 2, 3, 4))], r.choice(choices[op])

    def several(self, op):
        shape = self.shape()
        if op in ["equal"] + LOSSES:
            attrs = {"reduction": self.r.choice(["mean", "sum", "none"])} if op in LOSSES else {}
            return [shape, shape], attrs
        if op == "addcmul":
            return [self.fewer(shape), shape, self.fewer(shape)], {"value": self.r.choice([1.0, -2.0, 0.0])}
        shapes = [shape, self.fewer(shape)]
        if not op.endswith("_") and self.r.random() < 0.3:
            shapes.reverse()
        return shapes, {"weight": self.r.choice([0.5, 0.0, -1.0])} if op == "lerp" else {}

    def indexed(self, op):
        """An index of one dim, or of one element each. Where a number is one of a dim, dims are not empty."""
        shape = self.shape((1, 2, 3), 1)
        d = self.dim(len(shape))
        count = self.extent()
        part = list(shape)
        part[d] = count
        if op == "index_select":
            return [shape, [count]], {"dim": d}
        if op == "index_add":
            return [shape, [count], part], {"dim": d}
        if op == "take":
            return [shape, self.shape((0, 1, 2))], {}
        if op == "embedding":
            return [[self.extent(1), self.extent()], self.shape((0, 1, 2))], {}
        shorter = [self.r.randint(0, n) if self.r.random() < 0.3 else n for n in part]
        if op == "gather":
            return [shape, shorter], {"dim": d}
        return [shape, shorter, [n + self.r.choice([0, 0, 1]) for n in shorter]], {"dim": d}  # scatter_add

    def windows(self, op):
        places = self.r.choice([1, 2, 2])
        kernel = [self.r.choice([1, 2, 3]) for _ in range(places)]
        batch = min(self.extent(), 4)
        if op != "conv":
            return [[batch, min(self.extent(), 3)] + [k + self.r.choice([0, 1, 4]) for k in kernel]], {
                "kernel_size": kernel, "padding": [self.r.randint(0, k // 2) for k in kernel],
                "stride": [self.r.choice([1, 2, 3]) for _ in kernel]}
        groups = self.r.choice([1, 1, 2, 3])
        dilation = [self.r.choice([1, 1, 2]) for _ in kernel]
        x = [batch, 2 * groups] + [(k - 1) * w + 1 + self.r.choice([0, 1, 5]) for k, w in zip(kernel, dilation)]
        out = groups * self.r.choice([1, 2])
        return [x, [out, 2] + kernel] + ([[out]] if self.r.random() < 0.5 else []), {
            "groups": groups, "dilation": dilation, "padding": [self.r.choice([0, 1, 2]) for _ in kernel],
            "stride": [self.r.choice([1, 2, 3]) for _ in kernel]}

    def labelled(self, op):
        shape = self.shape((1, 2, 3), 1)
        weights = [shape[-1:]] * self.r.choice([0, 0, 1])
        return [shape, shape[:-1]] + weights, {"reduction": self.r.choice(["mean", "sum", "none"])}

    def grouped(self):
        groups = self.r.choice([1, 2, 3])
        channels = groups * self.r.choice([1, 2])
        return [[self.extent(), channels] + self.shape((0, 1, 2))] + [[channels]] * self.r.choice([0, 1, 2]), {
            "num_groups": groups}

    def parts(self, op):
        shape = self.shape((1, 2, 3, 4))
        ndim = len(shape)
        d = self.dim(ndim)
        if op == "flatten":
            first, last = sorted([self.r.randrange(ndim), self.r.randrange(ndim)])
            return [shape], {"start_dim": first, "end_dim": last - ndim}
        if op == "unflatten":
            return [shape], {"dim": d, "sizes": [1, -1] if shape[d] else [0, 3]}
        if op == "narrow":
            start = self.r.randint(0, shape[d])
            return [shape], {"dim": d, "start": start, "length": self.r.randint(0, shape[d] - start)}
        if op == "movedim":
            return [shape], {"source": d, "destination": self.dim(ndim)}
        if op == "pad":
            return [shape], {"pad": [self.r.randint(0, 3) for _ in range(2 * self.r.randint(1, ndim))],
                             "value": self.r.choice([0, 1, -2])}
        if op == "repeat":
            return [shape], {"repeats": [self.r.choice([0, 1, 1, 2, 3]) for _ in shape]}
        return [shape], {"dim": d, "repeats": self.r.choice([0, 1, 2, 3])}  # repeat_interleave

    def masked(self, op):
        shape = self.shape()
        if op == "where":
            return [self.fewer(shape), shape, self.fewer(shape)], {}
        return [shape, self.fewer(shape)], {"value": self.r.choice([0, 2, -1])}

    def p_norm(self):
        shape = self.shape(least=1)
        attrs = {"p": self.r.choice([2.0, 1.0, 3.0, "inf", "-inf", 0.0])}
        if self.r.random() < 0.5:
            attrs.update(dims=self.dims(len(shape)), keepdim=self.r.random() < 0.5)
        return [shape], attrs

    def call(self):
        families = [
            (ELEMENTWISE, lambda op: ([self.shape((0, 1, 2, 2, 3, 4))], {})),
            (REDUCTIONS, self.reduction),
            ("softmax log_softmax cumsum sort topk argmax select slice max min cummax cumprod".split(), self.along),
            ("matmul addmm linear dot".split(), self.product),
            (["einsum"], lambda op: self.equation()),
            ("layer_norm rms_norm".split(), self.norm),
            ("cat stack".split(), self.joined),
            (["reshape"], lambda op: self.reshaped()),
            ("permute transpose unsqueeze squeeze expand".split(), self.view),
            ("flip roll".split(), self.moved),
            ("mul_scalar add_scalar clamp pow cast dropout histc tril".split(), self.numbered),
            ("lerp addcmul equal".split() + PAIRS + LOSSES, self.several),
            (NUMBERS, lambda op: ([self.shape()], {{"celu": "alpha", "elu": "alpha", "hardshrink": "lambd",
                                                    "leaky_relu": "negative_slope"}.get(op, "value"):
                                                   self.r.choice([2, 0.5, 3])})),
            ("index_select index_add take embedding gather scatter_add".split(), self.indexed),
            ("conv avg_pool max_pool".split(), self.windows),
            ("cross_entropy nll_loss".split(), self.labelled),
            (["group_norm"], lambda op: self.grouped()),
            ("flatten unflatten narrow movedim pad repeat repeat_interleave".split(), self.parts),
            ("where masked_fill".split(), self.masked),
            (["vector_norm"], lambda op: self.p_norm()),
        ]
        names = [(name, make) for ops, make in families for name in ops]
        name, make = self.r.choice(names)
        return (name,) + make(name)

    # ---- rows ---------------------------------------------------------------------------------------------

    def places(self, shape, mesh, kinds, reduce):
        out = []
        for _ in mesh:
            kind = self.r.choice(kinds)
            if kind == "P":
                out.append(f"P({reduce})")
            elif kind in "SX" and shape:
                d = self.r.randrange(len(shape))
                out.append(f"S({d})" if kind == "S" else f"SS({d},{self.r.choice([2, 3])})")
            else:
                out.append("R")
        return out

    def row(self):
        op, shapes, attrs = self.call()
        mesh = self.r.choice(MESHES)
        dtype = self.r.choice(["f32"] * 6 + ["f64", "bf16", "i64", "bool", "c64", "f16", "i32"])
        if (op in REALS_ONLY and dtype in ("i64", "i32", "bool", "c64")) or (op in NO_COMPLEX and dtype == "c64") or \
                (op in NO_BOOL and dtype == "bool") or (op == "div_" and dtype != "f64"):
            dtype = "f32"
        reduces = {"bool": ["and", "or", "max", "min"], "c64": ["sum", "avg", "prod"], "i64": ["sum", "min", "prod"],
                   "i32": ["sum", "max"]}.get(dtype, ["sum", "sum", "avg", "min", "max", "product"])
        kinds = "RS" if self.r.random() < 0.3 else "RSSPX"
        places = [self.places(shape, mesh, kinds, self.r.choice(["and", "or"] if MASKS.get(op) == i else reduces))
                  for i, shape in enumerate(shapes)]
        return {"mesh": mesh, "op": op, "attrs": attrs, "shapes": shapes, "in": places, "dtype": dtype, "check": True}


def judge(rows, answers):
    bad, refused = [], 0
    assert len(rows) == len(answers), f"{len(answers)} answers to {len(rows)} rows"
    for row, answer in zip(rows, answers):
        error = answer.get("error", "")
        if row["op"].endswith("_") and "would have to leave its layout" in error:
            refused += 1
        elif error or answer["check"] != "ok":
            bad.append(json.dumps(row) + "\n    " + (error or answer["check"]))
    print(f"{len(rows)} rows, {refused} forms in place refused, {len(bad)} bad")
    print("\n".join(bad[:20]))
    return bool(bad)


if sys.argv[1] == "make":
    maker = Maker(int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        print(json.dumps(maker.row()))
else:
    sys.exit(judge(*[[json.loads(line) for line in open(path)] for path in sys.argv[2:4]]))
