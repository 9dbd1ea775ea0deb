/* SPDX-License-Identifier: Apache-2.0 */
/* Runs through a pipeline against one rank: twenty steps in f64 on meshes with an axis pp, with
 * what else a run may be told; the same bits again; states of any pp on any other; bad input. */
#include <time.h>

#include "dist/train_util.h"

enum { LONG = 20 };

#define BASE "[model]\nlayers = 3\ndtype = f64\n[train]\nsteps = 20\nbatch = 5\nclip = 0.5\n"

typedef struct piped {
    const char *name, *more;
    int64_t ranks;
} piped;

static void near_losses(test *t, const char *name, const outcome *a, const outcome *b)
{
    for (int s = 1; s <= LONG; s++) {
        TEST_SAY(t, fabs(a->loss[s] - b->loss[s]) <= 1e-11 * fabs(a->loss[s]),
                 "%s, step %d: loss %.17g and %.17g", name, s, a->loss[s], b->loss[s]);
        TEST_SAY(t, fabs(a->norm[s] - b->norm[s]) <= 1e-9 * fabs(a->norm[s]),
                 "%s, step %d: norm %.17g and %.17g", name, s, a->norm[s], b->norm[s]);
    }
}

/* Each on its mesh, all as one rank does it. */
static void compare(test *t, const char *base, const piped *rows, size_t count)
{
    folder f = make_folder(t);
    outcome one = { 0 };
    char more[1024];
    TEST_OK(t, train(t, &f, "one", base, 1, &one));
    TEST_CHECK(t, one.loss[LONG] < one.loss[1]);
    for (size_t i = 0; i < count; i++) {
        outcome other = { 0 };
        if (!test_tries(t)) continue;
        snprintf(more, sizeof more, "%s[parallel]\n%s", base, rows[i].more);
        TEST_OK(t, train(t, &f, rows[i].name, more, rows[i].ranks, &other));
        near_losses(t, rows[i].name, &one, &other);
    }
    remove_folder(&f);
}

TS_TEST(train_pipeline_is_one_rank)
{
    static const piped rows[] = {
        { "pp2", "mesh = pp=2\n", 2 },
        { "pp3", "mesh = pp=3\nmicro_batches = 8\n", 3 },
        { "fsdp", "mesh = pp=2, fsdp=2\n", 4 },
        { "tp", "mesh = tp=2, pp=2\nschedule = gpipe\n", 4 },
        { "cp", "mesh = pp=2, cp=2\nmicro_batches = 1\n", 4 },
        { "zbv", "mesh = pp=2\nschedule = ZBVZeroBubble\nmicro_batches = 3\n", 2 },
        { "said", "mesh = pp=2\nstages = 1: 1 4\n", 2 },
        { "cost", "mesh = pp=2, fsdp=2\nstages = 1: cost\n", 4 },
        { "search", "mesh = pp=2\nschedule = search\nmicro_batches = 3\n", 2 },
        { "tp1", "mesh = pp=2, tp=1\n", 2 }, /* on an axis of one rank operators write R */
        { "ones", "mesh = pp=2, replicate=1, fsdp=1, cp=1, tp=1\n", 2 },
        { "cp1", "mesh = pp=2, cp=1, tp=2\n", 4 },
    };
    compare(t, BASE, rows, sizeof rows / sizeof rows[0]);
}

TS_TEST(train_pipeline_tied_and_parts)
{
    static const piped rows[] = {
        { "pp3", "mesh = pp=3\nrecompute = full\n", 3 },
        { "fsdp", "mesh = fsdp=2, pp=2\nmicro_batches = 2\n", 4 },
        { "ones", "mesh = pp=1, fsdp=1, cp=2\nmicro_batches = 2\n", 2 },
    };
    compare(t, BASE "batch = 6\naccumulate = 2\n", &rows[2], 1);
    static const piped thin = { "thin", "mesh = pp=2, tp=1\nmicro_batches = 2\n", 2 };
    compare(t, BASE "[model]\ntied = 1\n", &thin, 1);
    compare(t, BASE "batch = 6\naccumulate = 2\n[model]\ntied = 1\n", rows, 2);
    compare(t, BASE "batch = 6\naccumulate = 3\n[model]\ntied = 1\n", rows, 2);
    compare(t, BASE "[model]\ntied = 1\n[optimizer]\ngroups = model.embed_tokens.*: frozen\n", rows,
            2);
    compare(t, BASE "[model]\nfamily = gpt2\n[optimizer]\nkind = sgd\nmomentum = 0.9\n", rows, 2);
}

TS_TEST(train_pipeline_documents)
{
    static const piped rows[] = {
        { "pp2", "mesh = pp=2\n", 2 },
        { "cp", "mesh = fsdp=2, pp=2, cp=2\nrecompute = full\nmicro_batches = 3\n", 8 },
    };
    compare(t, BASE "[data]\ndocuments = separate\nend = 10\n[log]\nsample = 3\n", rows, 2);
}

/* Evaluated rows are as many as another part has, and the sequence is cut as the last step's. */
TS_TEST(train_pipeline_documents_evaluated)
{
    static const piped row = { "cp", "mesh = pp=1, cp=3\nbalance = ptrr\n", 3 };
    folder f = make_folder(t);
    outcome one = { 0 }, other = { 0 };
    char base[1024], more[1280];
    snprintf(base, sizeof base,
             BASE "eval_every = 2\n[data]\nheld_out = %s/text.txt\nheld_out_rows = 7\n"
                  "documents = separate\nend = 10\n",
             f.path);
    TEST_OK(t, train(t, &f, "one", base, 1, &one));
    snprintf(more, sizeof more, "%s[parallel]\n%s", base, row.more);
    TEST_OK(t, train(t, &f, row.name, more, row.ranks, &other));
    near_losses(t, row.name, &one, &other);
    TEST_SAY(t, fabs(one.eval[LONG] - other.eval[LONG]) < 1e-11, "%.17g and %.17g", one.eval[LONG],
             other.eval[LONG]);
    remove_folder(&f);
}

/* A text that the model wrote has another length than rows; a cut by cost fits one length alone. */
TS_TEST(train_pipeline_after_a_text)
{
    static const piped rows[] = {
        { "ptrr", "mesh = pp=2, cp=2\nbalance = ptrr\nmicro_batches = 2\n", 4 },
        { "again", "mesh = pp=2, cp=2\nbalance = per_document\n[train]\nreplay = 1\n", 4 },
    };
    compare(t, BASE "[model]\npositions = 40\n[log]\nsample = 3\nsample_every = 2\n", rows, 2);
}

/* Losses of routers are means over a micro-batch and count by its rows. */
TS_TEST(train_pipeline_experts)
{
    static const piped rows[] = {
        { "pp2", "mesh = pp=2\nmicro_batches = 3\n", 2 },
        { "ep", "mesh = pp=2, fsdp=2\nep = 2\n", 4 },
        { "part", "mesh = pp=2, fsdp=4\nep = 2\n", 8 },
    };
    compare(t,
            BASE "[model]\nfamily = mixtral\nexperts = 4\nexperts_per_token = 2\n"
                 "[experts]\nz_loss = 0.1\nsequence_loss = 0.01\n",
            rows, 3);
}

TS_TEST(train_pipeline_again_is_the_same)
{
    static const char more[] =
        BASE "steps = 6\n[model]\ndtype = f32\n[parallel]\nmesh = pp=2, tp=2\n"
             "micro_batches = 3\n";
    folder f = make_folder(t);
    outcome a = { 0 }, b = { 0 };
    TEST_OK(t, train(t, &f, "a", more, 4, &a));
    TEST_OK(t, train(t, &f, "b", more, 4, &b));
    same_losses(t, &a, &b, STEPS, 0);
    same_weights(t, &f, "a", "b");
    TEST_CHECK(t, a.result.bubble > 0.1 && a.result.bubble < 0.3);
    TEST_CHECK(t, a.result.bubble_measured > 0 && a.result.bubble_measured < 1);
    remove_folder(&f);
}

/* A tied weight is held by two stages and written once. */
TS_TEST(train_pipeline_states_of_any)
{
    static const piped rows[] = {
        { "parts", "mesh = pp=2\n", 2 },
        { "parts", "mesh = pp=3, fsdp=2\n", 6 },
        { "parts", "mesh = dp=1\n", 1 },
        { "parts", "mesh = pp=2, tp=2\nschedule = zbv\n", 4 },
        { "parts", "mesh = pp=4\n[checkpoint]\nasync = 1\n", 4 },
    };
    folder f = make_folder(t);
    outcome one = { 0 };
    char more[1024];
    TEST_OK(t, train(t, &f, "one", BASE "[model]\ntied = 1\n", 1, &one));
    outcome all = one;
    for (int i = 0; i < 5; i++) {
        outcome part = { 0 };
        snprintf(more, sizeof more, BASE "stop_after = %d\n[model]\ntied = 1\n[parallel]\n%s",
                 4 * i + 4, rows[i].more);
        TEST_OK(t, train(t, &f, rows[i].name, more, rows[i].ranks, &part));
        TEST_EQ(t, part.step_first, 4 * i);
        memcpy(all.loss + 4 * i + 1, part.loss + 4 * i + 1, 4 * sizeof all.loss[0]);
        memcpy(all.norm + 4 * i + 1, part.norm + 4 * i + 1, 4 * sizeof all.norm[0]);
    }
    near_losses(t, "parts", &one, &all);
    remove_folder(&f);
}

static void write_order(test *t, const folder *f, const char *name, const char *order)
{
    char path[FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s.csv", f->path, name);
    TEST_OK(t, tsi_file_replace(path, order, strlen(order)));
}

/* Stopped on the way and gone on. */
static void run_order(test *t, const folder *f, const char *family, const char *order)
{
    for (int stop = 2; stop <= 4; stop += 2) {
        outcome o = { 0 };
        char name[64], more[1024];
        snprintf(name, sizeof name, "%s-%s", family, order);
        snprintf(more, sizeof more,
                 BASE "steps = 4\nclip = 0\nstop_after = %d\n[model]\ntied = 1\nfamily = %s\n"
                      "[log]\nsample = 3\n[parallel]\nmesh = pp=3, fsdp=2\nmicro_batches = 2\n"
                      "schedule = %s/%s.csv\n",
                 stop, family, f->path, order);
        TEST_OK(t, train(t, f, name, more, 6, &o));
    }
}

/* The ends of the model stand where an order says: a tied weight, and what is beside it, is in the
 * files whichever of them the rank that writes has. */
TS_TEST(train_pipeline_ends_anywhere)
{
    folder f = make_folder(t);
    write_order(t, &f, "straight", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
    write_order(t, &f, "mirrored", "2F0,2B0,2F1,2B1\n1F0,1F1,1B0,1B1\n0F0,0F1,0B0,0B1\n");
    run_order(t, &f, "llama", "straight");
    run_order(t, &f, "llama", "mirrored");
    same_weights(t, &f, "llama-straight", "llama-mirrored");
    run_order(t, &f, "gpt2", "straight");
    run_order(t, &f, "gpt2", "mirrored");
    same_weights(t, &f, "gpt2-straight", "gpt2-mirrored");
    remove_folder(&f);
}

/* What schedules keep more than another is what was planned: kernels' own memory, which is not
 * planned, is the same in all. */
TS_TEST(train_pipeline_memory)
{
    static const char *const schedules[] = { "1F1B", "GPipe", "ZBVZeroBubble" };
    double held[3] = { 0 }, planned[3] = { 0 };
    folder f = make_folder(t);
    for (int i = 0; i < 3; i++) {
        outcome o = { 0 };
        ts_train_cost cost;
        ts_train_config *config = NULL;
        char more[512];
        snprintf(more, sizeof more,
                 "[model]\nlayers = 4\nhidden = 128\nheads = 4\n[data]\ncontext = 96\n[train]\n"
                 "steps = 2\nbatch = 8\n[parallel]\nmesh = pp=2\nmicro_batches = 8\n"
                 "schedule = %s\n",
                 schedules[i]);
        TEST_OK(t, train(t, &f, schedules[i], more, 2, &o));
        TEST_OK(t, ts_train_config_create(&config));
        TEST_OK(t, ts_train_config_parse(config, "small", small));
        TEST_OK(t, ts_train_config_parse(config, "more", more));
        TEST_OK(t, ts_train_forecast(config, &cost));
        TEST_EQ(t, cost.place_count, 2);
        held[i] = (double)o.memory;
        planned[i] = (double)cost.memory.peak;
        double error = (held[i] - held[0]) - (planned[i] - planned[0]);
        TEST_SAY(t, fabs(error) <= 0.05 * planned[i],
                 "%s: held %.0f, planned %.0f; 1F1B %.0f, %.0f", schedules[i], held[i], planned[i],
                 held[0], planned[0]);
        ts_train_config_destroy(config);
    }
    TEST_CHECK(t, planned[1] > 1.2 * planned[0]);
    remove_folder(&f);
}

/* ---- the report ------------------------------------------------------------------------------ */

/* Counted to the next step: a run of a second is worth a prediction. */
static int dawdle(const ts_train_step *step, void *context)
{
    (void)context;
    if (step->step == 1) (void)nanosleep(&(struct timespec){ .tv_sec = 1, .tv_nsec = 1 }, NULL);
    return 0;
}

static ts_status run_slowly(ts_rank *me, void *config)
{
    ts_train_options options = { .struct_size = sizeof options, .on_step = dawdle };
    ts_train_result result;
    return ts_train_run(me, config, &options, &result);
}

/* Ranks of a pipeline wait for each other in the prediction of a run as in that of a plan. */
TS_TEST(train_pipeline_predicts_idle_time)
{
    folder f = make_folder(t);
    char path[FOLDER_PATH_MAX], error[512] = "", *page = NULL;
    size_t length = 0;
    ts_train_config *config = NULL;
    TEST_OK(t, ts_train_config_create(&config));
    TEST_OK(t, ts_train_config_parse(config, "small", small));
    TEST_OK(t,
            ts_train_config_parse(config, "more", "[train]\nsteps = 2\n[parallel]\nmesh = pp=2\n"));
    snprintf(path, sizeof path, "%s/text.txt", f.path);
    set(t, config, "data.path", path);
    snprintf(path, sizeof path, "%s/run", f.path);
    set(t, config, "train.output", path);
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 2, .seed = 5
    };
    TEST_OK(t, ts_launch_with(&options, run_slowly, config, error, sizeof error));
    snprintf(path, sizeof path, "%s/run/report.html", f.path);
    TEST_OK(t, tsi_file_read(path, 1 << 24, &page, &length));
    TEST_CHECK(t, page && strstr(page, "<tr><td>idle in the pipeline</td>"));
    tsi_free(page);
    ts_train_config_destroy(config);
    remove_folder(&f);
}

TS_TEST(train_pipeline_refuses)
{
    static const struct {
        const char *more, *sentence;
    } rows[] = {
        { "mesh = pp=2\nstages = 4\nschedule = LoopedBFS\n",
          "5 blocks cannot be cut into 8 stages" },
        { "mesh = pp=2\nstages = 1: 2 2\n", "4 blocks in all, the model has 5" },
        { "mesh = pp=2\nstages = 1: 2 2 1\n", "blocks of 3 stages are said" },
        { "mesh = pp=2\nstages = two\n", "parallel.stages, column 1" },
        { "mesh = pp=2\nschedule = 2F2B\n", "2F2B" },
        { "mesh = pp=2\nschedule = ./none.csv\n", "none.csv" },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        outcome o = { 0 };
        char more[1024];
        snprintf(more, sizeof more, BASE "[parallel]\n%s", rows[i].more);
        TEST_CHECK(t, train(t, &f, "bad", more, 2, &o) != TS_OK);
        TEST_SAY(t, strstr(o.error, rows[i].sentence) != NULL, "%s: %s", rows[i].more, o.error);
    }
    remove_folder(&f);
}
