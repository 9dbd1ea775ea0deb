/* SPDX-License-Identifier: Apache-2.0 */
/* op.h - what an operator is: one row of ops.def and one tsi_op_desc in its own file.
 *
 *   call (inputs, attributes) --infer--> global shapes and dtypes of the outputs
 *                             --rules--> what may stay as it is on one axis (plan/rule.h)
 *                             --expand-> the cheapest choice on the whole mesh: a tsi_op_plan,
 *                                        cached per rank
 *                             --kernel-> local blocks in, local blocks out
 *
 * Everything but the kernel, the algorithms and the gradient is a pure function of metas and
 * attributes.
 *
 * INV: kernels see local blocks together with the global meta and the global indices they hold, so
 * an operator whose result depends on positions (tril, dropout, embedding) needs no special case
 * when it is sharded. A reduction over an empty local block writes the identity. */
#ifndef TSI_OP_OP_H
#define TSI_OP_OP_H

#include "layout/span.h"
#include "plan/expand.h"
#include "tensor/tensor.h"
#include "tessera/op.h"

enum { TSI_INPUT_MAX = TSI_OPERAND_MAX, TSI_OUTPUT_MAX = TSI_RESULT_MAX, TSI_ATTRIBUTE_TEXT = 96 };

/* ---- attributes: a plain struct per operator, described field by field ----------------------- */
typedef struct tsi_dims { /* a list of dims, or of extents */
    int32_t count, reserved;
    int64_t value[TS_NDIM_MAX];
} tsi_dims;

/* Attributes of type NUMBER are ts_numbers made by this: reals that are whole count as whole
 * numbers, so that one value has one form. NaN is "not given" where the default is null. */
static inline ts_number tsi_number_of(ts_number said)
{
    bool exact = said.kind == TS_NUMBER_REAL && said.real >= -0x1p63 && said.real < 0x1p63 &&
                 (double)(int64_t)said.real == said.real;
    return exact ? ts_number_int((int64_t)said.real) : said;
}
static inline ts_number tsi_number_real(double value)
{
    return tsi_number_of(ts_number_real(value));
}

typedef ts_op_attribute tsi_attribute; /* a list of dims is a tsi_dims, one number a list of one */
#define TSI_ATTR(type, field, kind, name, otherwise)                                               \
    {                                                                                              \
        name, TS_ATTRIBUTE_##kind, (uint32_t)offsetof(type, field), otherwise, NULL                \
    }
#define TSI_ATTR_ONE_OF(type, field, name, otherwise, choices)                                     \
    {                                                                                              \
        name, TS_ATTRIBUTE_CHOICE, (uint32_t)offsetof(type, field), otherwise, choices             \
    }

/* Parts of a tsi_op_desc: from how many inputs to how many, and results; attributes of a type. */
#define TSI_OPERANDS(least, most, results)                                                         \
    .input_min = least, .input_max = most, .output_count = results
#define TSI_ATTRIBUTES(table, type) .attribute = table, .attribute_bytes = sizeof(type)

/* ---- one call, globally ---------------------------------------------------------------------- */
typedef struct tsi_op_desc tsi_op_desc;
typedef struct tsi_op_call {
    const tsi_op_desc *op;
    const void *attributes; /* normalised by `normalise` if the operator has one */
    const ts_meta *in;      /* global; dtype TS_DTYPE_NONE: absent */
    ts_meta *out;           /* infer writes, the rest reads */
    int32_t input_count, output_count;
} tsi_op_call;

/* ---- one call, on one rank ------------------------------------------------------------------- */
typedef struct tsi_operand {
    tsi_block block; /* local; data NULL if empty or absent */
    const ts_meta *global;
    const tsi_region *region; /* which global indices it holds; NULL: all of them */
    const void *storage;      /* equal: parts of one memory, by construction; NULL: nothing known */
} tsi_operand;
/* The global index at a position of a dim. */
static inline int64_t tsi_operand_global(const tsi_operand *operand, int32_t dim, int64_t position)
{
    return operand->region ? tsi_span_list_at(&operand->region->dim[dim], position) : position;
}
/* Where a global index of a dim is here; -1: on another rank. */
static inline int64_t tsi_operand_local(const tsi_operand *operand, int32_t dim, int64_t index)
{
    return operand->region ? tsi_span_list_find(&operand->region->dim[dim], index) : index;
}

typedef struct tsi_kernel_io {
    const tsi_op_desc *op;
    const void *attributes;
    const tsi_operand *in, *out;
    int32_t input_count, output_count;
    ts_rank *rank;
    const tsi_device *device; /* where the blocks lie */
    tsi_stream *queue;        /* the kernel's work goes there; cpu: NULL, done on return */
    uint64_t seed, stream;    /* RANDOM operators */
    int32_t in_place;         /* output 0 is input 0's block */
    int32_t adds; /* attention: outputs hold what other keys gave, which is joined; of its gradient
                   * output 0 does, and they are f32, or f64 where queries are. */
} tsi_kernel_io;
typedef ts_status (*tsi_kernel_fn)(const tsi_kernel_io *io);

/* First global index of an operand's dim, for blocks that hold one interval of it. */
static inline int64_t tsi_operand_offset(const tsi_operand *operand, int32_t dim)
{
    if (!operand->region || operand->region->dim[dim].span_count == 0) return 0;
    return tsi_spans(&operand->region->dim[dim])[0].begin;
}

/* A view instead of a kernel: strides and offset of the result on the input's memory. false: the
 * block does not allow it, so it is copied by the reference kernel. `out` has its local extents
 * filled in. */
typedef bool (*tsi_view_fn)(const tsi_op_call *call, const tsi_block *in, tsi_block *out,
                            int64_t *offset_elements);

/* An algorithm: runs instead of the kernel where a rule asks for it, may communicate over `axes` of
 * the mesh. Inputs have the rule's placements; it creates the outputs with the given layouts. */
typedef struct tsi_algorithm_io {
    const tsi_op_desc *op;
    const void *attributes;
    const tsi_op_call *call;
    ts_rank *rank;
    ts_mesh *mesh;
    ts_group *group; /* of `axes` */
    uint32_t axes;
    int32_t input_count, output_count, reserved;
    ts_tensor *const *in;
    const ts_layout *const *out_layout;
    ts_tensor **out;
} tsi_algorithm_io;
typedef struct tsi_algorithm {
    const char *name; /* "two-phase"; NULL ends the list */
    ts_status (*run)(const tsi_algorithm_io *io);
    /* Bytes a rank receives, by information, when n ranks run it; for cost and reports. */
    int64_t (*bytes)(const tsi_op_call *call, int64_t n);
} tsi_algorithm;

/* Which of an operator's algorithms runs, where its rules name the first for all of them: a pure
 * function of layouts. `axes` are those of the rule. */
typedef struct tsi_algorithm_request {
    const tsi_op_call *call;
    const ts_layout *const *in; /* as the rule wants them */
    tsi_mesh_desc *mesh;
    uint32_t axes, reserved;
    const ts_layout *const *out; /* as the rule gives them */
} tsi_algorithm_request;
enum { TSI_CANDIDATES_MAX = 6 };
typedef struct tsi_algorithm_candidate {
    int32_t algorithm;     /* 0: not possible here */
    int32_t steps;         /* rounds of messages */
    int64_t bytes, memory; /* received by all ranks; beside inputs and outputs, of the worst rank */
    double us, balance;    /* modelled; the work of the busiest rank over the mean */
} tsi_algorithm_candidate;
typedef struct tsi_algorithm_choice {
    int32_t chosen, count; /* index of a candidate */
    tsi_algorithm_candidate candidate[TSI_CANDIDATES_MAX];
} tsi_algorithm_choice;

/* A call whose choice of rules moves inputs: may an algorithm do both together? `axes` is written.
 * Candidate 0 is the plan as it is. */
typedef struct tsi_fusion {
    const tsi_op_call *call;
    tsi_mesh_desc *mesh;
    const ts_layout *const *in, *const
                                    *wanted; /* as they are; as the kernel wants them: NULL: so */
    const ts_layout *const *out;
    uint32_t axes, reserved; /* of the algorithm */
} tsi_fusion;

/* Kernels of an operator that compete by the sizes of a rank's blocks. */
enum { TSI_KERNELS_MAX = 4 };
typedef struct tsi_kernel_choice {
    int32_t chosen, count;
    struct {
        const char *name;
        double us; /* modelled, of one thread; negative: not possible for the call */
    } candidate[TSI_KERNELS_MAX];
} tsi_kernel_choice;

/* ---- gradients ------------------------------------------------------------------------------- */
typedef struct tsi_grad_io {
    const tsi_op_desc *op; /* NULL: not an operator's gradient */
    const void *attributes;
    ts_rank *rank;
    ts_tensor *const *in;       /* saved inputs; NULL where `saves` does not name them; of complex
                                   numbers the conjugates, so that dy f'(x) is the gradient */
    ts_tensor *const *out;      /* saved outputs, likewise */
    const ts_meta *in_meta;     /* of all inputs */
    ts_tensor *const *out_grad; /* NULL: no gradient reached that output */
    ts_tensor **in_grad;        /* to be filled where needed; stays NULL for none */
    uint64_t needs;             /* bit i: input i wants its gradient */
    uint64_t wide;              /* bit i: input i was rounded from f32 on the way: a gradient in f32
                                   is as welcome as one in its own dtype, and loses nothing */
    /* (optional to use) Of input i, the sum of the gradients that are there already, or NULL. An
     * operator that adds its own to one, in place or not, gives the new sum in in_grad and says so
     * in *included. */
    ts_tensor *const *in_sum;
    uint64_t *included;
    int32_t input_count, output_count;
    int32_t last, reserved; /* 1: what was saved is let go after this (tsi_op_make_over) */
} tsi_grad_io;
/* The end of a gradient of one input. */
static inline ts_status tsi_grad_give(const tsi_grad_io *io, ts_tensor *dx)
{
    io->in_grad[0] = dx;
    return ts_rank_status(io->rank);
}

static inline bool tsi_grad_is_wide(const tsi_grad_io *io, int32_t input)
{
    return io->wide >> input & 1;
}

/* ---- the descriptor -------------------------------------------------------------------------- */
enum {                         /* tsi_op_desc.flags */
       TSI_OP_VIEW = 1,        /* `view` gives a view of input 0 where the block allows */
       TSI_OP_IN_PLACE = 2,    /* has a form name_ that writes into input 0 */
       TSI_OP_RANDOM = 4,      /* draws numbers; never cached by value, partial inputs refused */
       TSI_OP_HOST = 8,        /* the result is read by the host (equal, allclose) */
       TSI_OP_DATA_SHAPE = 16, /* the output's shape depends on data (masked_select) */
       TSI_OP_NO_GRAD = 32,    /* has no gradient by nature (comparisons, argmax); where it gives
                                  reals,    a gradient that arrives is refused */
       TSI_OP_LIST = 64,       /* any number of inputs of one kind (cat, stack) */
       TSI_OP_ONE_ROUND = 128, /* its algorithms take one round of messages, not an all-reduce's */
       TSI_OP_TWO_ROUNDS = 16384, /* theirs go there and back, and no sum is among them */
       TSI_OP_USER = 256,         /* registered at run time: a ts_op (user.h) */
       TSI_OP_COMPOSED = 512,     /* algorithm 1 runs whatever the rule: it has no kernel */
       TSI_OP_FREE = 2048,  /* its result does not follow its inputs' values: constants, draws,
                               masks; a gradient that arrives there ends there */
       TSI_OP_CHEAP = 4096, /* sooner computed again than kept, though not element by element:
                               norms, rotations */
       TSI_OP_MOVES = 8192, /* its reference only copies, fills, draws and calls other kernels, by
                               io->device and in the order of io->queue: it is a kernel of every
                               device */
       TSI_OP_WRAPS = 1024  /* of integers it wraps and keeps no order: only sums pass through */
};
enum { /* tsi_op_desc.dtypes */
       TSI_DTYPES_REAL =
           1 << TS_DTYPE_F64 | 1 << TS_DTYPE_F32 | 1 << TS_DTYPE_BF16 | 1 << TS_DTYPE_F16,
       TSI_DTYPES_WHOLE = 1 << TS_DTYPE_I64 | 1 << TS_DTYPE_I32 | 1 << TS_DTYPE_I16 |
                          1 << TS_DTYPE_I8 | 1 << TS_DTYPE_U8,
       TSI_DTYPES_ORDERED = TSI_DTYPES_REAL | TSI_DTYPES_WHOLE | 1 << TS_DTYPE_BOOL
};
enum { TSI_SAVE_OUT = 32 }; /* saves: bit i: input i; bit 32 + j: output j */

/* ---- samples --------------------------------------------------------------------------------- */
typedef struct tsi_sample {
    uint64_t *random;
    int32_t variant;  /* counts up from 0 */
    int32_t count;    /* of inputs; before the most the operator takes */
    ts_meta *in;      /* all zero before */
    void *attributes; /* the operator's own */
} tsi_sample;

/* What `of` gives as another variant. */
static inline bool tsi_sample_as(tsi_sample *s, int32_t variant, bool (*of)(tsi_sample *s))
{
    int32_t own = s->variant;
    s->variant = variant;
    bool more = of(s);
    s->variant = own;
    return more;
}

static inline ts_meta tsi_meta_f64(ts_shape shape)
{
    return (ts_meta){ .shape = shape, .dtype = TS_DTYPE_F64 };
}

/* One input, and the variant's attributes of a table of `count`, `bytes` each. */
bool tsi_sample_given(tsi_sample *s, ts_shape shape, const void *given, size_t bytes, size_t count);
#define TSI_SAMPLE_GIVEN(s, shape, given)                                                          \
    tsi_sample_given(s, shape, given, sizeof(given)[0], TSI_COUNT_OF(given))

struct tsi_op_desc {
    const char *name;
    const char *dims; /* index expression "mk,kn->mn", "*" for elementwise with broadcast; or NULL
                         and rules */
    ts_reduce dims_reduce;        /* how letters absent from the result are reduced; 0: sum */
    int32_t input_min, input_max; /* trailing inputs may be absent down to input_min */
    int32_t output_count;
    uint32_t flags;
    uint32_t dtypes; /* bit d: dtype d of input 0 is accepted; 0: all */
    uint64_t saves;
    /* Bit o: output o is made for the gradient of others (statistics of a norm) and has none of its
     * own: one that arrives there is refused. */
    uint32_t aside;
    /* Per output, 1 + the input whose order of dims in memory it has, if both have the same local
     * extents; 0: row-major. So views of what it is made from stay views of what it makes. */
    uint8_t lies_like[TSI_OUTPUT_MAX];
    /* Outputs are parts of one block, beside each other in a dim: 1 + dim, or counted from the last
     * (-1); 0: a block each. Only where dtypes and all other local extents are alike and every part
     * begins on 16 bytes, so kernels take any strides. */
    int32_t beside;
    tsi_traits traits; /* used with dims; a function below replaces it where attributes matter */
    const tsi_attribute *attribute; /* NULL: none */
    size_t attribute_bytes;
    const char *what;   /* one line for docs/ops.md */
    const void *family; /* (optional) what operators of one file share a kernel by */
    /* Fills defaults that depend on shapes, makes dims non-negative. In place, before infer;
     * refuses what is out of range. */
    ts_status (*normalise)(const tsi_op_desc *op, const ts_meta *in, int32_t input_count,
                           void *attributes);
    ts_status (*infer)(const tsi_op_call *call);
    void (*trait)(const tsi_op_call *call, tsi_traits *out); /* (optional) */
    void (*rules)(const tsi_op_call *call,
                  tsi_rules *rules); /* (optional) more rules, or all if dims is NULL */
    bool (*joint)(const tsi_op_call *call, const ts_placement *const *in,
                  const ts_placement *const *out); /* (optional) */
    /* (optional) Whole-layout propagation instead of rules: views. Given input 0's layout, the
     * layout the input must have (retained; itself if it may stay) and the output's sharding
     * (retained). */
    ts_status (*propagate)(const tsi_op_call *call, const ts_layout *in,
                           const ts_layout **in_wanted, const ts_sharding **out);
    tsi_kernel_fn reference; /* plain C, any stride, any dtype that makes sense */
    tsi_view_fn view;        /* with TSI_OP_VIEW */
    const tsi_algorithm *algorithm;
    ts_status (*pick)(const tsi_algorithm_request *request,
                      tsi_algorithm_choice *out); /* (optional) */
    /* (optional) Bytes that all ranks together receive by algorithm 1, exactly, by their layouts;
     * -1: not counted, and those of the algorithm itself are stated. */
    int64_t (*received)(const tsi_algorithm_request *request);
    /* (optional) Inputs that move and the call itself as one algorithm; no candidates: it is not.
     */
    ts_status (*fuse)(tsi_fusion *fusion, tsi_algorithm_choice *out);
    const struct tsi_chunks_desc *chunks; /* (optional) of products (op/matrix/chunks.h) */
    /* (optional) The first input is still on its way from `from`: may the rows of *dim that are
     * here already be computed before the others? `in` are the layouts of the call. */
    bool (*arrives)(const tsi_op_call *call, const ts_layout *const *in, const ts_layout *from,
                    int32_t *dim);
    /* (optional) Which of several kernels runs; shapes of the call are those of a rank's blocks. */
    void (*kernels)(const tsi_op_call *call, tsi_kernel_choice *out);
    ts_status (*grad)(const tsi_grad_io *io);
    /* (optional) Multiplications and additions of the products it makes, of all ranks together;
     * NULL: it makes none. */
    double (*flops)(const tsi_op_call *call);
    /* For the sweeps: random valid inputs and attributes; false: there are no more variants. */
    bool (*sample)(tsi_sample *s);
};

/* ---- the table (table.c), made from ops.def -------------------------------------------------- */
typedef enum tsi_op_id {
#define TS_OP(id, name) TSI_OP_ID_##id,
#include "op/ops.def"
#undef TS_OP
    TSI_OP_ID_COUNT
} tsi_op_id;
#define TS_OP(id, name) extern const tsi_op_desc tsi_op_##name;
#include "op/ops.def"
#undef TS_OP
const tsi_op_desc *tsi_op_find(const char *name); /* without a trailing '_'; NULL: none */
const tsi_op_desc *tsi_op_at(int32_t index);      /* 0 .. TSI_OP_ID_COUNT-1, alphabetical */
int32_t tsi_op_number(const tsi_op_desc *op);     /* -1: registered at run time */
/* Also those registered in a world (user.c); a NULL world has none. */
const tsi_op_desc *tsi_op_find_in(ts_world *world, const char *name);
/* `sample` of any operator; false: there is none, or no more variants. */
bool tsi_op_sample(const tsi_op_desc *op, uint64_t *random, int32_t variant, ts_meta *in,
                   int32_t *input_count, void *attributes);

/* ---- running (dispatch.c) -------------------------------------------------------------------- */
typedef struct tsi_op_args {
    const tsi_op_desc *op;
    ts_tensor *const
        *in; /* NULL: an absent optional input, or a failed one (then the rank has failed) */
    int32_t input_count;
    int32_t in_place;
    const void *attributes;
} tsi_op_args;
/* recorded. out receives output_count tensors of the innermost scope; all NULL on failure. */
ts_status tsi_op_run(const tsi_op_args *args, ts_tensor **out);
/* The same into tensors that are there (op_call.h, ts_op_call_into). */
ts_status tsi_op_run_into(const tsi_op_args *args, ts_tensor *const *into);
/* The maker form, for operators with one output. */
ts_tensor *tsi_op_make(const tsi_op_desc *op, ts_tensor *const *in, int32_t input_count,
                       const void *attributes);
/* The same in place of in[0] if that has one holder, who needs it no more; so on all ranks or on
 * none, since what travels may follow from it. Where its memory is seen elsewhere, too, which may
 * be so on some ranks alone, a copy is written. in[0] moves on no rank: the caller looked at its
 * layout. */
ts_tensor *tsi_op_make_over(const tsi_op_desc *op, ts_tensor *const *in, int32_t input_count,
                            const void *attributes);

#endif
