/* SPDX-License-Identifier: Apache-2.0 */
/* bench_checkpoint.c - `tessera bench checkpoint`: saves and loads beside plain writes with sync
 * and plain reads of the same bytes by the same threads; hashes beside copies; planning; saves in
 * the background beside the copy they must make.
 *
 * Ours and the floor take turns, at least seven times; the ratio is the median of the pairs'
 * ratios. "Cold" means that the kernel was told to forget the pages of the files. Rates are those
 * of all ranks together.
 *
 * INV: both sides of a pair use memory of one kind, which was touched before: plain reads and
 * writes that of a tensor, as loads and saves do, copies that of the host, as saves behind do. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "bench_lines.h"

enum { PAIRS = 7, TENSORS = 16, CHUNK = 1 << 20, PATH_BYTES = 600, COLUMNS = 1024, SETTLE_MS = 10 };

typedef struct bench {
    const char *directory, *only; /* parts of names of rows; NULL: all */
    int64_t bytes, ranks;
    bench_lines lines;
    char error[512];
} bench;

typedef struct side { /* one rank's part */
    bench *self;
    ts_rank *me;
    ts_group *world;
    int64_t share;            /* bytes of this rank */
    ts_state *rows, *columns; /* the same tensors, cut by rows and by columns */
    ts_tensor *tensor[TENSORS];
    char *block;  /* [share] of a tensor */
    char *copied; /* [share] of the host */
    char ours[PATH_BYTES], plain[PATH_BYTES];
} side;

typedef ts_status (*part_fn)(side *s);

static ts_status fail(side *s, const char *path)
{
    return ts_rank_fail(s->me, TS_ERR_IO, "%s: %s", path, strerror(errno));
}

static bool is_asked_for(const bench *b, const char *name)
{
    return !b->only || strstr(name, b->only);
}

/* ---- plain files ----------------------------------------------------------------------------- */

static ts_status plain_write(side *s)
{
    int file = open(s->plain, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || posix_fallocate(file, 0, (off_t)s->share) != 0) return fail(s, s->plain);
    for (int64_t at = 0; at < s->share; at += CHUNK) {
        int64_t left = s->share - at;
        size_t bytes = left < CHUNK ? (size_t)left : CHUNK;
        if (pwrite(file, s->block + at, bytes, (off_t)at) != (ssize_t)bytes)
            return fail(s, s->plain);
    }
    bool good = fsync(file) == 0;
    close(file);
    return good ? TS_OK : fail(s, s->plain);
}

static ts_status plain_read(side *s)
{
    int file = open(s->plain, O_RDONLY | O_CLOEXEC);
    if (file < 0) return fail(s, s->plain);
    for (int64_t at = 0; at < s->share; at += CHUNK) {
        int64_t left = s->share - at;
        size_t bytes = left < CHUNK ? (size_t)left : CHUNK;
        if (pread(file, s->block + at, bytes, (off_t)at) != (ssize_t)bytes)
            return fail(s, s->plain);
    }
    close(file);
    return TS_OK;
}

/* ---- ours ------------------------------------------------------------------------------------ */

static ts_status our_save(side *s)
{
    return ts_checkpoint_save(s->rows, s->ours, NULL);
}

static ts_status load(side *s, ts_state *state, int32_t unverified)
{
    ts_load_options options = TS_INIT(ts_load_options);
    options.unverified = unverified;
    return ts_checkpoint_load(state, s->ours, &options);
}

static ts_status load_rows(side *s)
{
    return load(s, s->rows, 0);
}

static ts_status load_rows_unverified(side *s)
{
    return load(s, s->rows, 1);
}

static ts_status load_columns(side *s)
{
    return load(s, s->columns, 0);
}

static ts_status load_columns_unverified(side *s)
{
    return load(s, s->columns, 1);
}

static ts_status save_behind(side *s)
{
    ts_save_options options = TS_INIT(ts_save_options);
    options.background = 1;
    return ts_checkpoint_save(s->rows, s->ours, &options);
}

static ts_status copy_state(side *s)
{
    int64_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        ts_array view = TS_INIT(ts_array);
        ts_status status = ts_tensor_view(s->tensor[i], &view);
        if (status != TS_OK) return status;
        size_t bytes = (size_t)ts_shape_count(&view.meta.shape) * sizeof(float);
        ts_array to = { .struct_size = sizeof to, .data = s->copied + at, .meta = view.meta };
        if (view.device == 0)
            memcpy(to.data, view.data, bytes);
        else
            status = ts_tensor_read(s->tensor[i], &to);
        if (status != TS_OK) return status;
        at += (int64_t)bytes;
    }
    return TS_OK;
}

/* ---- before each ----------------------------------------------------------------------------- */

static void forget_file(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
}

static ts_status nothing(side *s)
{
    (void)s;
    return TS_OK;
}

/* Files of every rank: another may read them. */
static ts_status forget_pages(side *s)
{
    char path[PATH_BYTES + 64];
    forget_file(s->plain);
    for (int64_t i = 0; i < s->self->ranks; i++) {
        snprintf(path, sizeof path, "%s/rank-%05lld.safetensors", s->ours, (long long)i);
        forget_file(path);
    }
    return TS_OK;
}

static ts_status finish_behind(side *s)
{
    return ts_state_wait(s->rows);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* Threads that were woken on one core are on their own again after a few ticks of work. */
static void settle(void)
{
    double end = cli_now() + SETTLE_MS / 1e3;
    while (cli_now() < end)
        continue;
}

/* Seconds from the first rank's start to the last one's end. */
static ts_status timed(side *s, part_fn prepare, part_fn run, double *seconds)
{
    ts_status status = prepare(s);
    if (status == TS_OK) status = ts_group_barrier(s->world, NULL);
    settle();
    if (status == TS_OK) status = ts_group_barrier(s->world, NULL);
    double begin = cli_now();
    if (status == TS_OK) status = run(s);
    if (status == TS_OK) status = ts_group_barrier(s->world, NULL);
    *seconds = cli_now() - begin;
    return status;
}

/* Bytes that this process had the disk read; -1: not known. */
static int64_t disk_bytes(void)
{
    char line[128];
    long long bytes = -1;
    FILE *file = fopen("/proc/self/io", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "read_bytes: %lld", &bytes) == 1) break;
    if (file) fclose(file);
    return bytes;
}

typedef struct versus {
    const char *name, *floor;
    part_fn prepare, ours, plain;
    double wanted;
} versus;

static ts_status run_versus(side *s, const versus *v)
{
    double ours[PAIRS], plain[PAIRS], ratio[PAIRS];
    int64_t read = 0;
    for (int i = -1; i < PAIRS; i++) { /* the first counts for nothing: it touches memory, files */
        int at = i < 0 ? 0 : i;
        ts_status status = timed(s, v->prepare, v->plain, &plain[at]);
        int64_t before =
            disk_bytes(); /* between two barriers, and files are read behind the next */
        if (status == TS_OK) status = timed(s, v->prepare, v->ours, &ours[at]);
        if (status != TS_OK) return status;
        ratio[at] = plain[at] / ours[at];
        read += i < 0 ? 0 : disk_bytes() - before;
    }
    if (ts_rank_index(s->me) != 0) return TS_OK;
    double bytes = (double)s->self->bytes / 1e9, middle = bench_median(ratio, PAIRS);
    double floor = bytes / bench_median(plain, PAIRS);
    bench_line *line = bench_lines_add(&s->self->lines, "GB/s", middle * floor, "%s", v->name);
    bench_line_floor(line, floor, v->floor);
    bench_line_note(line, "ratios %.2f to %.2f%s", ratio[0], ratio[PAIRS - 1],
                    v->wanted > 0 ? "" : ", not asked for");
    if (v->wanted > 0) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, ", wanted %.2f", v->wanted);
        strncat(line->note, wanted, sizeof line->note - strlen(line->note) - 1);
    }
    if (v->prepare == forget_pages) {
        line = bench_lines_add(&s->self->lines, "x", (double)read / PAIRS / (double)s->self->bytes,
                               "%s: read from the disk", v->name);
        bench_line_note(line, "of its bytes, by all ranks together; once per node is 1");
    }
    return TS_OK;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

static volatile uint64_t kept; /* so that nothing is left out */

static void hash_lines(side *s)
{
    enum { BYTES = 64 << 20 };
    static const struct {
        const char *name;
        int kind; /* 0 copy, 1 block, 2 elements */
        ts_dtype dtype;
        double wanted;
    } rows[] = { { "hash of blocks", 1, TS_DTYPE_U8, 0.55 },
                 { "hash of f32 elements", 2, TS_DTYPE_F32, 0.2 },
                 { "hash of bf16 elements", 2, TS_DTYPE_BF16, 0.2 },
                 { "hash of f64 elements", 2, TS_DTYPE_F64, 0.2 } };
    char *from = malloc(BYTES), *to = malloc(BYTES);
    if (!from || !to) goto done;
    memset(from, 3, BYTES);
    memset(to, 1, BYTES);
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        if (!is_asked_for(s->self, rows[k].name)) continue;
        double copy[PAIRS], hash[PAIRS], ratio[PAIRS];
        for (int i = 0; i < PAIRS; i++) {
            double begin = cli_now();
            memcpy(to, from, BYTES);
            kept += (unsigned char)to[i];
            copy[i] = cli_now() - begin;
            begin = cli_now();
            int64_t count = BYTES / (int64_t)ts_dtype_size(rows[k].dtype);
            kept += rows[k].kind == 1 ? ts_hash_block(from, BYTES)
                                      : ts_hash_elements(rows[k].dtype, 0, from, count);
            hash[i] = cli_now() - begin;
            ratio[i] = copy[i] / hash[i];
        }
        double middle = bench_median(ratio, PAIRS), rate = BYTES / 1e9 / bench_median(copy, PAIRS);
        bench_line *line =
            bench_lines_add(&s->self->lines, "GB/s", middle * rate, "%s", rows[k].name);
        bench_line_floor(line, rate, "memcpy");
        bench_line_note(line, "ratios %.2f to %.2f, wanted %.2f", ratio[0], ratio[PAIRS - 1],
                        rows[k].wanted);
    }
done:
    free(from);
    free(to);
}

/* ---- in the background ----------------------------------------------------------------------- */

enum { SIZE = 512, PRODUCTS = 2, STEPS_MIN = 20 };
#define BESIDE "steps while a save is written"

/* A step as training has it: products that keep every rank's cores busy, then one word that ranks
 * agree on, by the poll of the save or by a barrier. */
static ts_status one_step(side *s, ts_tensor *a, int *busy)
{
    ts_status status = TS_OK;
    for (int i = 0; i < PRODUCTS && status == TS_OK; i++) {
        ts_tensor *c = ts_matmul(a, a);
        status = ts_tensor_wait(c);
        ts_tensor_drop(c);
    }
    if (status != TS_OK) return status;
    return busy ? ts_state_poll(s->rows, busy) : ts_group_barrier(s->world, NULL);
}

/* Seconds of a step while a save is being written, at least STEPS_MIN of them by further saves, and
 * how long it takes from its beginning to its end. */
static ts_status steps_beside(side *s, ts_tensor *a, int64_t *steps, double *seconds)
{
    double spent = 0;
    ts_status status = TS_OK;
    *steps = 0;
    while (status == TS_OK && *steps < STEPS_MIN) {
        int busy = 1;
        status = save_behind(s); /* the copy is the other row's */
        double begin = cli_now();
        for (; status == TS_OK && busy; ++*steps)
            status = one_step(s, a, &busy);
        spent += cli_now() - begin;
    }
    *seconds = spent / (double)*steps;
    return status;
}

static ts_status steps_alone(side *s, ts_tensor *a, int64_t steps, double *seconds)
{
    ts_status status = ts_group_barrier(s->world, NULL);
    double begin = cli_now();
    for (int64_t i = 0; i < steps && status == TS_OK; i++)
        status = one_step(s, a, NULL);
    *seconds = (cli_now() - begin) / (double)steps;
    return status;
}

/* How much slower steps are while a save is being written; pairs as everywhere. */
static ts_status while_writing(side *s)
{
    double alone[PAIRS], beside[PAIRS], ratio[PAIRS];
    ts_scope scope = ts_scope_open_with(s->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_mesh *self = ts_mesh_self(s->me);
    ts_tensor *a = ts_randn(self, TS_DTYPE_F32, TS_SHAPE(SIZE, SIZE), NULL);
    ts_status status = ts_rank_status(s->me);
    int64_t steps = 0;
    for (int i = 0; i < PAIRS && status == TS_OK; i++) {
        status = steps_beside(s, a, &steps, &beside[i]);
        if (status == TS_OK) status = steps_alone(s, a, steps, &alone[i]);
        ratio[i] = alone[i] / beside[i];
    }
    ts_scope_close(scope);
    if (status != TS_OK || ts_rank_index(s->me) != 0) return status;
    double middle = bench_median(ratio, PAIRS), floor = 1 / bench_median(alone, PAIRS);
    bench_line *line = bench_lines_add(&s->self->lines, "1/s", middle * floor, BESIDE);
    bench_line_floor(line, floor, "steps alone");
    bench_line_note(line, "ratios %.2f to %.2f, wanted 0.90; %lld steps", ratio[0],
                    ratio[PAIRS - 1], (long long)steps);
    return TS_OK;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static ts_status make_states(side *s, ts_mesh *mesh)
{
    int64_t rows = s->self->bytes / TENSORS / COLUMNS / (int64_t)sizeof(float);
    s->rows = ts_state_create(mesh);
    s->columns = ts_state_create(mesh);
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d.weight", i);
        s->tensor[i] = ts_randn(mesh, TS_DTYPE_F32, TS_SHAPE(rows, COLUMNS), "S(0)");
        ts_tensor *other = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(rows, COLUMNS), "S(1)");
        (void)ts_state_add_tensor(s->rows, name, s->tensor[i]);
        (void)ts_state_add_tensor(s->columns, name, other);
    }
    return ts_rank_status(s->me);
}

/* Memory for the plain side, touched. */
static ts_status make_memory(side *s, ts_mesh *mesh)
{
    ts_array view = TS_INIT(ts_array);
    ts_tensor *bytes = ts_empty(mesh, TS_DTYPE_U8, TS_SHAPE(s->self->bytes), "S(0)");
    ts_status status = ts_tensor_view(bytes, &view);
    if (status != TS_OK) return status;
    s->copied = malloc((size_t)s->share);
    if (!s->copied) return ts_rank_fail(s->me, TS_ERR_MEMORY, "no memory for a copy");
    s->block = view.device == 0 ? view.data : s->copied;
    memset(s->block, 5, (size_t)s->share);
    memset(s->copied, 5, (size_t)s->share);
    return TS_OK;
}

static ts_status measure(side *s)
{
    static const versus list[] = {
        { "save", "write and fsync", nothing, our_save, plain_write, 0.9 },
        { "load, cold", "cold reads", forget_pages, load_rows_unverified, plain_read, 0.9 },
        { "load, cold, hashes checked", "cold reads", forget_pages, load_rows, plain_read, 0 },
        { "load cut otherwise, cold", "cold reads", forget_pages, load_columns_unverified,
          plain_read, 0.8 },
        { "load cut otherwise, cold, hashes checked", "cold reads", forget_pages, load_columns,
          plain_read, 0 },
        { "load, warm", "warm reads", nothing, load_rows_unverified, plain_read, 0.9 },
        { "load, warm, hashes checked", "warm reads", nothing, load_rows, plain_read, 0 },
        { "load cut otherwise, warm", "warm reads", nothing, load_columns_unverified, plain_read,
          0 },
        { "load cut otherwise, warm, hashes checked", "warm reads", nothing, load_columns,
          plain_read, 0 },
        { "save in the background, until it returns", "memcpy", finish_behind, save_behind,
          copy_state, 1 / 1.2 },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (!is_asked_for(s->self, list[i].name)) continue;
        ts_status status = run_versus(s, &list[i]);
        if (status == TS_OK) status = ts_state_wait(s->rows);
        if (status != TS_OK) return status;
    }
    return is_asked_for(s->self, BESIDE) ? while_writing(s) : TS_OK;
}

static ts_status work(ts_rank *me, void *argument)
{
    side s = { .self = argument, .me = me, .world = ts_group_world(me) };
    ts_scope scope = ts_scope_open(me, NULL);
    s.share = s.self->bytes / s.self->ranks;
    snprintf(s.ours, sizeof s.ours, "%s/ours", s.self->directory);
    snprintf(s.plain, sizeof s.plain, "%s/plain-%lld", s.self->directory,
             (long long)ts_rank_index(me));
    char axes[32];
    snprintf(axes, sizeof axes, "x=%lld", (long long)s.self->ranks);
    ts_mesh *mesh = ts_mesh_create(me, axes);
    ts_status status = make_states(&s, mesh);
    if (status == TS_OK) status = make_memory(&s, mesh);
    if (status == TS_OK) status = plain_write(&s);
    if (status == TS_OK) status = our_save(&s);
    if (status == TS_OK) status = measure(&s);
    if (status == TS_OK && ts_rank_index(me) == 0) hash_lines(&s);
    ts_state_destroy(s.rows);
    ts_state_destroy(s.columns);
    ts_mesh_release(mesh);
    free(s.copied);
    unlink(s.plain);
    ts_scope_close(scope);
    return status;
}

/* ---- planning -------------------------------------------------------------------------------- */

#define PLAN "plan of a rank, 1,000 tensors on 100,000 ranks"

typedef struct planning {
    double first, again; /* seconds of a rank */
} planning;

static ts_status plan_work(ts_rank *me, void *argument)
{
    enum { COUNT = 1000 };
    static const char *const placements[] = { "S(0), S(1)", "S(0), R", "R, S(1)", "R, R" };
    planning *p = argument;
    ts_scope scope = ts_scope_open(me, NULL);
    ts_mesh *mesh = ts_mesh_create(me, "fsdp=12500, tp=8");
    ts_state *state = ts_state_create(mesh);
    for (int i = 0; i < COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.mlp.down_proj.weight", i);
        (void)ts_state_add_tensor(
            state, name, ts_zeros(mesh, TS_DTYPE_BF16, TS_SHAPE(16384, 4096), placements[i % 4]));
    }
    ts_status status = ts_rank_status(me);
    for (int i = 0; i < 2 * PAIRS && status == TS_OK; i++) {
        double begin = cli_now();
        ts_save_options options = TS_INIT(ts_save_options);
        options.copies = i < PAIRS ? 1 + i % 2 : 1; /* another plan each time, then the same */
        status = ts_checkpoint_save(state, "nowhere", &options);
        double seconds = cli_now() - begin, *best = i < PAIRS ? &p->first : &p->again;
        if (*best == 0 || seconds < *best) *best = seconds;
    }
    ts_state_destroy(state);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
    return status;
}

static int plan_lines(bench *b)
{
    planning p = { 0 };
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "model";
    options.rank_count = 100000;
    if (ts_launch_with(&options, plan_work, &p, b->error, sizeof b->error) != TS_OK)
        return cli_fail("bench checkpoint", "%s", b->error);
    bench_line *line = bench_lines_add(&b->lines, "us", p.first * 1e6, PLAN);
    bench_line_note(line, "wanted at most 1000");
    (void)bench_lines_add(&b->lines, "us", p.again * 1e6, "the same plan again");
    return -1;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about, (void)kind, (void)where;
    return remove(path);
}

static int run(bench *b)
{
    enum { NAME_BYTES = 100 }; /* of what is written in it */
    if (strlen(b->directory) >= PATH_BYTES - NAME_BYTES)
        return cli_fail_usage("bench checkpoint", "--directory: has more than %d bytes",
                              PATH_BYTES - NAME_BYTES - 1);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = b->ranks;
    options.timeout_ms = 600000;
    if (mkdir(b->directory, 0777) != 0)
        return cli_fail("bench checkpoint", "%s: %s", b->directory, strerror(errno));
    ts_status status = ts_launch_with(&options, work, b, b->error, sizeof b->error);
    if (nftw(b->directory, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "%s stays\n", b->directory);
    return status == TS_OK ? -1 : cli_fail("bench checkpoint", "%s", b->error);
}

int cli_bench_checkpoint(int argc, char **argv)
{
    bool json = false;
    bench b = { .directory = "bench-checkpoint.tmp", .bytes = 256 << 20 };
    b.ranks = sysconf(_SC_NPROCESSORS_ONLN);
    const cli_option options[] = {
        CLI_FLAG("json", &json, "one JSON object"),
        CLI_SIZE("size", &b.bytes, 1 << 20, (int64_t)1 << 44, "of the state; 256MiB"),
        CLI_INT("ranks", &b.ranks, 1, 1024, "threads that write and read; as many as cores"),
        CLI_TEXT("only", &b.only, "TEXT", "rows alone whose names have it"),
        CLI_TEXT("directory", &b.directory, "PATH", "made, and removed; bench-checkpoint.tmp"),
        CLI_END
    };
    const cli_usage usage = { "bench checkpoint", "[options]",
                              "Saves and loads against plain writes with sync and plain reads of "
                              "the same bytes by the\nsame threads; hashes against copies; "
                              "planning; saves in the background.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 1) return cli_fail_usage("bench checkpoint", "takes options alone");
    int64_t unit = b.ranks * TENSORS * COLUMNS * (int64_t)sizeof(float);
    b.bytes = (b.bytes + unit - 1) / unit * unit;
    code = run(&b);
    if (code < 0 && is_asked_for(&b, PLAN)) code = plan_lines(&b);
    if (code < 0 && b.lines.count == 0)
        return cli_fail_usage("bench checkpoint", "--only: no line has \"%s\" in its name", b.only);
    return code < 0 ? bench_lines_print(&b.lines, json) : code;
}
