/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.c - what this machine and this build have, what is missing and which package has it.
 *
 * Optional parts that are missing are reported, never an error: the exit code is 0 as long as ranks
 * start and talk to each other, which is tried for real. */
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

/* A library that the build looks for; found at build time is 0 or 1. */
typedef struct library {
    const char *name, *use, *package;
    int found;
} library;

static const library libraries[] = {
#ifdef TS_HAVE_OPENBLAS
    { "openblas", "matrix products", "libopenblas-dev", TS_HAVE_OPENBLAS },
#endif
#ifdef TS_HAVE_INIH
    { "inih", "configuration files", "libinih-dev", TS_HAVE_INIH },
#endif
#ifdef TS_HAVE_XXHASH
    { "xxhash", "checksums of checkpoints", "libxxhash-dev", TS_HAVE_XXHASH },
#endif
#ifdef TS_HAVE_PCRE2
    { "pcre2", "patterns of tokenizers", "libpcre2-dev", TS_HAVE_PCRE2 },
#endif
};
enum { LIBRARIES = sizeof libraries / sizeof libraries[0] };

/* What modules may bring: asked for by name, found or not with a sentence. */
typedef ts_status (*find_fn)(const char *name, char *text, size_t size);
enum { PARTS_MAX = 6 };
static const struct {
    const char *title;
    find_fn find;
    const char *name[PARTS_MAX]; /* NULL ends */
} parts[] = {
    { "engines", ts_engine_find, { "threads", "model", "mpi:openmpi", "mpi:mpich", "nccl" } },
    { "devices", ts_device_find, { "cpu", "queue", "cuda" } },
};
enum { PARTS = sizeof parts / sizeof parts[0] };

typedef struct report {
    cli_machine machine;
    bool found[PARTS][PARTS_MAX];
    char text[PARTS][PARTS_MAX][512];
    bool runs, first; /* ranks started and agreed; rank 0 was of this process */
    int64_t ranks, nodes;
    ts_topology topology; /* what its plans take the links for */
    double start_seconds;
    char problem[512], plans[512]; /* plans: what ts_op_cache_text said */
    char job[512]; /* why the ranks of a launcher's job did not start; "": they did */
} report;

static const char *compiler_text(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

static const char *build_text(void)
{
#if defined(__SANITIZE_ADDRESS__)
    return "address sanitizer";
#elif defined(__SANITIZE_THREAD__)
    return "thread sanitizer";
#elif defined(NDEBUG)
    return "release";
#else
    return "debug";
#endif
}

/* Two operator calls, one of which moves: what the counters of plans say of them. */
static void try_plans(ts_rank *me, report *out)
{
    ts_scope scope = ts_scope_open(me, NULL);
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(0)");
    ts_tensor *y = ts_add(ts_add(x, x), ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(8, 4), "S(1)"));
    if (y && ts_rank_index(me) == 0) (void)ts_op_cache_text(me, out->plans, sizeof out->plans);
    (void)ts_scope_close(scope);
    ts_mesh_release(mesh);
}

/* Where the ranks live, as the engine found it. */
static ts_status find_nodes(ts_rank *me, report *out)
{
    const ts_world *world = ts_rank_world(me);
    out->first = true;
    out->ranks = ts_rank_count(me);
    for (int64_t i = 0; i < out->ranks; i++) {
        int64_t node = ts_world_node(world, i);
        if (node >= out->nodes) out->nodes = node + 1;
    }
    return ts_topology_of(ts_rank_world(me), &out->topology);
}

/* The trial: ranks sum their numbers, and everybody must see the same sum. */
static ts_status trial(ts_rank *me, void *arg)
{
    try_plans(me, arg);
    if (ts_rank_index(me) == 0 && find_nodes(me, arg) != TS_OK) return ts_rank_status(me);
    int64_t mine = ts_rank_index(me) + 1, sum = 0;
    ts_array in = { .struct_size = sizeof in, .data = &mine, .meta = { .dtype = TS_DTYPE_I64 } };
    ts_array out = in;
    out.data = &sum;
    ts_status status = ts_group_all_reduce(ts_group_world(me), &in, &out, TS_REDUCE_SUM, NULL);
    int64_t n = ts_rank_count(me);
    if (status == TS_OK && sum != n * (n + 1) / 2) {
        return ts_rank_fail(me, TS_ERR_INTERNAL, "the sum over %lld ranks is %lld", (long long)n,
                            (long long)sum);
    }
    return status;
}

/* The ranks of the job that this process is of, wherever they are; else two threads. */
static bool try_ranks(report *out)
{
    ts_world_options threads = TS_INIT(ts_world_options);
    threads.engine = "threads";
    threads.rank_count = 2;
    if (ts_launcher() != NULL &&
        ts_launch_with(NULL, trial, out, out->job, sizeof out->job) == TS_OK)
        return true;
    return ts_launch_with(&threads, trial, out, out->problem, sizeof out->problem) == TS_OK;
}

static void examine(report *out)
{
    memset(out, 0, sizeof *out);
    cli_machine_read(&out->machine);
    for (size_t k = 0; k < PARTS; k++)
        for (size_t i = 0; i < PARTS_MAX && parts[k].name[i]; i++)
            out->found[k][i] =
                parts[k].find(parts[k].name[i], out->text[k][i], sizeof out->text[k][i]) == TS_OK;
    double start = cli_now();
    out->runs = try_ranks(out);
    out->start_seconds = cli_now() - start;
}

static void put_part(ts_json_writer *json, const report *r, size_t k)
{
    ts_json_put_key(json, parts[k].title);
    ts_json_put_open(json, '[');
    for (size_t i = 0; i < PARTS_MAX && parts[k].name[i]; i++) {
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "name", parts[k].name[i]);
        ts_json_put_member_bool(json, "found", r->found[k][i]);
        ts_json_put_member_text(json, "text", r->text[k][i]);
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}

static void put_levels(ts_json_writer *json, const report *r)
{
    ts_json_put_member_int(json, "ranks", r->ranks);
    ts_json_put_member_int(json, "nodes", r->nodes);
    ts_json_put_member_text(json, "topology", r->topology.name);
    ts_json_put_key(json, "levels");
    ts_json_put_open(json, '[');
    for (int32_t i = 0; i < r->topology.level_count; i++) {
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "name", r->topology.level[i].name);
        ts_json_put_member_int(json, "ranks", r->topology.level[i].ranks);
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}

static int print_json(const report *r)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    ts_json_put_member_text(&json, "version", TS_VERSION);
    ts_json_put_member_text(&json, "compiler", compiler_text());
    ts_json_put_member_text(&json, "build", build_text());
    ts_json_put_key(&json, "machine");
    cli_machine_json(&r->machine, &json);
    for (size_t k = 0; k < PARTS; k++)
        put_part(&json, r, k);
    ts_json_put_key(&json, "libraries");
    ts_json_put_open(&json, '[');
    for (size_t i = 0; i < LIBRARIES; i++) {
        ts_json_put_open(&json, '{');
        ts_json_put_member_text(&json, "name", libraries[i].name);
        ts_json_put_member_bool(&json, "found", libraries[i].found != 0);
        ts_json_put_member_text(&json, "use", libraries[i].use);
        ts_json_put_member_text(&json, "package", libraries[i].package);
        ts_json_put_close(&json, '}');
    }
    ts_json_put_close(&json, ']');
    doctor_settings_put(&json);
    ts_json_put_member_bool(&json, "runs", r->runs);
    ts_json_put_member_real(&json, "start_seconds", r->start_seconds);
    ts_json_put_member_text(&json, "plans", r->plans);
    put_levels(&json, r);
    if (r->job[0]) ts_json_put_member_text(&json, "job", r->job);
    if (!r->runs) ts_json_put_member_text(&json, "problem", r->problem);
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static void print_nodes(const report *r)
{
    printf("\nnodes of the ranks below, and the links that plans take between them\n");
    printf("  nodes        %lld\n  topology     %s\n", (long long)r->nodes, r->topology.name);
    for (int32_t i = 0; i < r->topology.level_count; i++) {
        const ts_topology_level *level = &r->topology.level[i];
        char ranks[32] = "all";
        if (level->ranks > 0) snprintf(ranks, sizeof ranks, "%lld", (long long)level->ranks);
        printf("  %-12s %s ranks, %g us, %g GiB/s\n", level->name, ranks, level->latency_us,
               level->bandwidth_gib_s);
    }
}

static void print_text(const report *r)
{
    char memory[32], start[32];
    printf("tessera %s (%s build, %s)\n\n", TS_VERSION, build_text(), compiler_text());
    printf("machine\n  system     %s\n  processor  %s\n  cores      %lld\n  memory     %s\n",
           r->machine.system, r->machine.processor, (long long)r->machine.cores,
           cli_bytes(memory, sizeof memory, r->machine.memory_bytes));
    for (size_t k = 0; k < PARTS; k++) {
        printf("\n%s\n", parts[k].title);
        for (size_t i = 0; i < PARTS_MAX && parts[k].name[i]; i++)
            printf("  %-12s %s  %s\n", parts[k].name[i], r->found[k][i] ? "yes" : "no ",
                   r->text[k][i]);
    }
    printf("\nlibraries\n");
    for (size_t i = 0; i < LIBRARIES; i++) {
        printf("  %-12s %s  %s", libraries[i].name, libraries[i].found ? "yes" : "no ",
               libraries[i].use);
        if (!libraries[i].found) printf("; install %s and build again", libraries[i].package);
        printf("\n");
    }
    doctor_settings_print();
    printf("\nplans of operator calls, after two calls (ts_op_cache_text shows a program's own)\n");
    for (const char *line = r->plans; *line;) {
        int length = (int)strcspn(line, "\n");
        printf("  %.*s\n", length, line);
        line += length + (line[length] == '\n');
    }
    if (r->job[0]) printf("\nthe ranks of this job (%s) do not start: %s\n", ts_launcher(), r->job);
    if (r->runs) {
        print_nodes(r);
        printf("\n%lld ranks started, summed and stopped in %s: tessera runs here\n",
               (long long)r->ranks, cli_seconds(start, sizeof start, r->start_seconds));
    } else {
        printf("\ntessera does not run here: %s\n", r->problem);
    }
}

int cli_doctor(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = { CLI_FLAG("json", &json, "one JSON object"), CLI_END };
    const cli_usage usage = {
        "doctor", "[options]",
        "Says what this machine and this build have, what is missing, and which "
        "package has it.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 1) return cli_fail_usage("doctor", "unexpected argument \"%s\"", argv[1]);
    report *r = malloc(sizeof *r);
    if (r == NULL) return cli_fail("doctor", "out of memory");
    examine(r);
    int bad = 0;
    bool tells = r->first || !r->runs; /* of a job's processes, the first */
    if (tells && json)
        bad = print_json(r);
    else if (tells)
        print_text(r);
    bad |= !r->runs;
    free(r);
    return bad;
}
