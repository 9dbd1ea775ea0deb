/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.c - `tessera ckpt WHAT`: looks at checkpoints, and checks that they are what was written. */
#include "ckpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- shared ---------------------------------------------------------------------------------- */

int ckpt_open(const char *command, const char *path, ts_archive **out)
{
    *out = NULL;
    if (access(path, F_OK) != 0 && ts_archive_open(path, out) != TS_OK)
        return cli_fail_usage(command, "%s: there is nothing", path);
    if (*out || ts_archive_open(path, out) == TS_OK) return -1;
    int code = cli_refuse_run(command, path);
    return code >= 0 ? code : cli_fail(command, "%s", ts_last_error());
}

ts_dtype ckpt_read_as(ts_dtype dtype)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_F32:
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        return TS_DTYPE_F64;
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
        return TS_DTYPE_C128;
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_U8:
    case TS_DTYPE_BOOL:
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    return TS_DTYPE_I64;
}

/* The fewest digits that give the same number again, in 32 bits where it has no more. */
static void real_text(char *out, size_t size, double value, bool narrow)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        double again = strtod(out, NULL);
        bool same = narrow ? (float)again == (float)value : again == value;
        if (same || isnan(value)) return;
    }
}

const char *ckpt_number(char *out, ts_dtype dtype, const void *number)
{
    const double *real = number;
    ts_dtype as = ckpt_read_as(dtype);
    bool narrow = dtype != TS_DTYPE_F64 && dtype != TS_DTYPE_C128;
    if (as == TS_DTYPE_I64) {
        snprintf(out, CKPT_NUMBER_MAX, "%" PRId64, *(const int64_t *)number);
    } else if (as == TS_DTYPE_F64) {
        real_text(out, CKPT_NUMBER_MAX, real[0], narrow);
    } else {
        char a[40], b[40];
        real_text(a, sizeof a, real[0], narrow);
        real_text(b, sizeof b, real[1], narrow);
        snprintf(out, CKPT_NUMBER_MAX, "%s%s%sj", a, b[0] == '-' ? "" : "+", b);
    }
    return out;
}

ckpt_progress ckpt_progress_begin(const char *what)
{
    return (ckpt_progress){ .what = what, .terminal = isatty(STDERR_FILENO) == 1 };
}

void ckpt_progress_show(int64_t done, int64_t all, void *context)
{
    enum { BAR = 30 };
    ckpt_progress *p = context;
    double now = cli_now();
    if (!p->terminal || (done < all && now - p->shown < 0.1)) return;
    p->shown = now;
    char bar[BAR + 1], a[32], b[32];
    for (int i = 0; i < BAR; i++)
        bar[i] = all > 0 && (double)i < (double)done / (double)all * BAR ? '#' : '.';
    bar[BAR] = '\0';
    fprintf(stderr, "\r%s [%s] %s of %s\033[K", p->what, bar, cli_bytes(a, sizeof a, done),
            cli_bytes(b, sizeof b, all));
    fflush(stderr);
}

void ckpt_progress_end(ckpt_progress *p)
{
    if (p->terminal && p->shown > 0) fprintf(stderr, "\r\033[K");
}

/* ---- info ------------------------------------------------------------------------------------ */

typedef struct summary {
    ts_archive_about about;
    int64_t bytes;
} summary;

static summary summarise(const ts_archive *archive)
{
    summary s = { .bytes = 0 };
    ts_archive_about_of(archive, &s.about);
    for (int64_t i = 0; i < s.about.tensor_count; i++) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(archive, i, &tensor);
        s.bytes += tensor.bytes;
    }
    return s;
}

static void put_hash(ts_json_writer *json, uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    ts_json_put_member_text(json, "hash", text);
}

static void put_tensor(ts_json_writer *json, const ts_archive_tensor *tensor, uint64_t hash)
{
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", tensor->name);
    ts_json_put_key(json, "shape");
    ts_json_put_ints(json, tensor->meta.shape.extent, tensor->meta.shape.ndim);
    ts_json_put_member_text(json, "dtype", ts_dtype_name((ts_dtype)tensor->meta.dtype));
    ts_json_put_member_int(json, "bytes", tensor->bytes);
    ts_json_put_member_text(json, "sharding", tensor->sharding);
    ts_json_put_member_text(json, "of", tensor->of);
    put_hash(json, hash);
    ts_json_put_close(json, '}');
}

/* Hashes of formats that store none are computed: all data is read. */
static bool put_tensors(ts_json_writer *json, ts_archive *archive, const summary *s, uint64_t *all)
{
    ts_json_put_key(json, "tensors");
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < s->about.tensor_count; i++) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(archive, i, &tensor);
        uint64_t hash = tensor.hash;
        if (!s->about.hashed && ts_archive_hash(archive, i, &hash) != TS_OK) return false;
        *all = ts_archive_hash_add(*all, tensor.name, hash);
        put_tensor(json, &tensor, hash);
    }
    ts_json_put_close(json, ']');
    return true;
}

static int info_json(ts_archive *archive, const summary *s)
{
    ts_json_writer json = { 0 };
    uint64_t hash = 0;
    ts_json_put_open(&json, '{');
    ts_json_put_member_text(&json, "format", s->about.format);
    if (s->about.step >= 0) ts_json_put_member_int(&json, "step", s->about.step);
    if (s->about.step < 0) ts_json_put_member_text(&json, "step", NULL);
    ts_json_put_member_text(&json, "mesh", s->about.mesh);
    ts_json_put_member_int(&json, "bytes", s->bytes);
    bool good = put_tensors(&json, archive, s, &hash);
    put_hash(&json, s->about.hashed ? s->about.hash : hash);
    ts_json_put_close(&json, '}');
    int code = good ? cli_json_print(&json, stdout) : cli_fail("ckpt info", "%s", ts_last_error());
    ts_json_writer_release(&json);
    return code;
}

static void shape_text(char *out, size_t size, const ts_shape *shape)
{
    size_t at = (size_t)snprintf(out, size, "[");
    for (int32_t d = 0; d < shape->ndim && at < size; d++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRId64, d ? ", " : "", shape->extent[d]);
    if (at < size) snprintf(out + at, size - at, "]");
}

static int info_text(const ts_archive *archive, const summary *s)
{
    static const char *const names[] = { "tensor",     "dtype", "shape", ">bytes",
                                         "placements", "hash",  NULL };
    char bytes[32];
    printf("format  %s\n", s->about.format);
    if (s->about.step >= 0) printf("step    %" PRId64 "\n", s->about.step);
    if (s->about.mesh[0]) printf("mesh    %s\n", s->about.mesh);
    if (s->about.hashed) printf("hash    %016" PRIx64 "\n", s->about.hash);
    printf("tensors %" PRId64 ", %s\n\n", s->about.tensor_count,
           cli_bytes(bytes, sizeof bytes, s->bytes));
    cli_table table = { 0 };
    cli_table_begin(&table, names);
    for (int64_t i = 0; i < s->about.tensor_count; i++) {
        ts_archive_tensor tensor;
        char shape[CLI_CELL_MAX];
        ts_archive_tensor_at(archive, i, &tensor);
        shape_text(shape, sizeof shape, &tensor.meta.shape);
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s", tensor.name);
        cli_table_cell(&table, 1, "%s", ts_dtype_name((ts_dtype)tensor.meta.dtype));
        cli_table_cell(&table, 2, "%s", shape);
        cli_table_cell(&table, 3, "%" PRId64, tensor.bytes);
        cli_table_cell(&table, 4, "%s", tensor.sharding);
        if (s->about.hashed) cli_table_cell(&table, 5, "%016" PRIx64, tensor.hash);
    }
    cli_table_print(&table, stdout);
    cli_table_release(&table);
    return 0;
}

static int ckpt_info(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = { CLI_FLAG("json", &json, "one JSON object"), CLI_END };
    const cli_usage usage = { "ckpt info", "DIR [options]",
                              "What a checkpoint, or a directory of published weights, has.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("ckpt info", "needs one directory");
    ts_archive *archive = NULL;
    code = ckpt_open("ckpt info", argv[1], &archive);
    if (code >= 0) return code;
    summary s = summarise(archive);
    code = json ? info_json(archive, &s) : info_text(archive, &s);
    ts_archive_close(archive);
    return code;
}

/* ---- verify ---------------------------------------------------------------------------------- */

/* Says what is wrong with a tensor; false: something is. */
static bool check_tensor(ts_archive *archive, int64_t index, bool hashed, uint64_t *all)
{
    ts_archive_tensor tensor;
    uint64_t hash = 0;
    ts_archive_tensor_at(archive, index, &tensor);
    if (ts_archive_hash(archive, index, &hash) != TS_OK) {
        printf("%s: %s\n", tensor.name, ts_last_error());
        return false;
    }
    *all = ts_archive_hash_add(*all, tensor.name, hash);
    if (!hashed || hash == tensor.hash) return true;
    printf("%s: its hash is %016" PRIx64 ", written was %016" PRIx64 "\n", tensor.name, hash,
           tensor.hash);
    return false;
}

static int verify_all(ts_archive *archive)
{
    summary s = summarise(archive);
    ckpt_progress progress = ckpt_progress_begin("verify");
    int64_t bad = 0, done = 0;
    uint64_t all = 0;
    for (int64_t i = 0; i < s.about.tensor_count; i++) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(archive, i, &tensor);
        bad += !check_tensor(archive, i, s.about.hashed != 0, &all);
        done += tensor.bytes;
        ckpt_progress_show(done, s.bytes, &progress);
    }
    ckpt_progress_end(&progress);
    if (ts_archive_check_others(archive) != TS_OK) {
        printf("%s\n", ts_last_error());
        bad++;
    }
    if (bad == 0 && s.about.hashed && all != s.about.hash) {
        printf("the hash of the whole is %016" PRIx64 ", written was %016" PRIx64 "\n", all,
               s.about.hash);
        bad++;
    }
    printf("%" PRId64 " tensors, %" PRId64 " damaged%s\n", s.about.tensor_count, bad,
           s.about.hashed ? "" : " (the format stores no hashes: headers and sizes agree)");
    return bad > 0;
}

static int ckpt_verify(int argc, char **argv)
{
    const cli_option options[] = { CLI_END };
    const cli_usage usage = { "ckpt verify", "DIR",
                              "Reads all of a checkpoint and compares every hash. Exit code 0: all "
                              "agree, 1: something is\ndamaged, and named.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("ckpt verify", "needs one directory");
    ts_archive *archive = NULL;
    code = ckpt_open("ckpt verify", argv[1], &archive);
    if (code >= 0) return code;
    code = verify_all(archive);
    ts_archive_close(archive);
    return code;
}

/* ---- which ----------------------------------------------------------------------------------- */

static const cli_subject subjects[] = {
    { "info", "what is in it: tensors, shapes, dtypes, hashes", ckpt_info },
    { "verify", "are all hashes those that were written?", ckpt_verify },
    { "diff", "which tensors of two checkpoints differ, and where first", ckpt_diff },
    { "convert", "to a directory of another format, dtype or size of files", ckpt_convert },
    { "cat", "the numbers of a tensor, or of a slice of it", ckpt_cat },
};

int cli_ckpt(int argc, char **argv)
{
    static const cli_subjects all = {
        "ckpt",
        "WHAT DIR [options]",
        "Of checkpoints (docs/checkpoints.md) and of directories of published weights.",
        "unknown",
        subjects,
        sizeof subjects / sizeof subjects[0],
        8
    };
    return cli_run_subject(&all, argc, argv);
}
