/* SPDX-License-Identifier: Apache-2.0 */
/* train.c - `tessera train CONFIG`: says what it will do, trains, and says where everything is.
 *
 * On a terminal one line is drawn over and over; elsewhere there is a line at most every two
 * seconds. Ctrl-C (or SIGTERM, to any process of a run) lets the step end, saves, and ends; the
 * same command goes on from there. A second one leaves out the sample, a third ends at once. Ranks
 * are threads of this process, or processes under mpirun. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "train.h"

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    if (++stopped < 3) return;
    signal(number, SIG_DFL);
    raise(number);
}

static int asked_to_stop(void *context)
{
    (void)context;
    return stopped;
}

typedef struct job {
    ts_train_config *config;
    bool terminal, quiet;
    double shown;             /* when the last line was written */
    double began, first;      /* the program; the end of its first step, or 0 */
    int64_t every;            /* steps from line to line; 0: by time */
    int64_t slow, slow_steps; /* the rank that others wait for, for so many steps in a row */
    ts_train_result result;
} job;

/* "12.3 k", "4.56 M" */
static const char *amount(char *buffer, size_t size, double value)
{
    static const char letters[] = " kMGTP";
    size_t i = 0;
    while (value >= 1000 && i < sizeof letters - 2) {
        value /= 1000;
        i++;
    }
    snprintf(buffer, size, i > 0 ? "%.3g %c" : "%.3g", value, letters[i]);
    return buffer;
}

/* "1 min 05 s" */
static const char *duration(char *buffer, size_t size, double seconds)
{
    long long whole = (long long)(seconds + 0.5);
    if (whole < 60)
        snprintf(buffer, size, "%lld s", whole);
    else if (whole < 3600)
        snprintf(buffer, size, "%lld min %02lld s", whole / 60, whole % 60);
    else
        snprintf(buffer, size, "%lld h %02lld min", whole / 3600, whole / 60 % 60);
    return buffer;
}

static void show_plan(const ts_train_plan *p, void *context)
{
    const job *j = context;
    if (j->quiet) return;
    char a[32], b[32], c[32], d[32], e[32];
    printf("model   %s parameters, %s FLOP per token\n", amount(a, sizeof a, (double)p->parameters),
           amount(b, sizeof b, p->flops_per_token));
    printf("mesh    %s: %lld ranks (%s), plan %s\n", p->mesh, (long long)p->ranks, p->engine,
           p->plan);
    printf("device  %s\n", p->device);
    printf("data    %s tokens; a step has %lld = %lld rows of %lld\n",
           amount(a, sizeof a, (double)p->data_tokens), (long long)p->tokens_per_step,
           (long long)p->rows, (long long)p->context);
    if (p->schedule != NULL) {
        printf("stages  %lld of", (long long)p->stages);
        for (int64_t g = 0; g < p->stages; g++)
            printf(" %lld", (long long)p->blocks[g]);
        printf(" blocks; %s, %lld micro-batches, idle %.1f %%\n", p->schedule,
               (long long)p->micro_batches, 100 * p->bubble);
    }
    int64_t total = p->weight_bytes + p->gradient_bytes + p->optimizer_bytes + p->activation_bytes;
    printf("memory  about %s a rank: weights %s, gradients %s, optimizer %s, activations %s\n",
           cli_bytes(a, sizeof a, total), cli_bytes(b, sizeof b, p->weight_bytes),
           cli_bytes(c, sizeof c, p->gradient_bytes), cli_bytes(d, sizeof d, p->optimizer_bytes),
           cli_bytes(e, sizeof e, p->activation_bytes));
    if (p->step_first > 0)
        printf("steps   %lld, going on after step %lld (%s/state)\n", (long long)p->steps,
               (long long)p->step_first, p->output);
    else
        printf("steps   %lld, into %s\n", (long long)p->steps, p->output);
    fflush(stdout);
}

/* Columns of the terminal, or 0. */
static int columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* One that the others wait for, half as slow again as the fastest and more than noise, in one step
 * after the other: where ranks share cores some rank is late in most steps, and seldom the same. */
static void watch(job *j, const ts_train_step *s)
{
    bool late = s->busy_most > 1.5 * s->busy_least && s->busy_most > s->busy_least + 0.01;
    if (!late || s->busy_rank != j->slow) j->slow_steps = 0;
    j->slow = s->busy_rank;
    j->slow_steps += late;
}

static void draw(const ts_train_step *s, const job *j)
{
    enum { BAR = 20, SLOW_STEPS = 5 };
    bool terminal = j->terminal;
    char bar[BAR + 1], speed[32], flops[32], memory[32], left[32], line[256];
    for (int i = 0; i < BAR; i++)
        bar[i] = i < (int)(s->step * BAR / s->steps) ? '#' : '.';
    bar[BAR] = '\0';
    char held_out[32] = "";
    if (!isnan(s->eval_loss)) snprintf(held_out, sizeof held_out, "held out %.4f  ", s->eval_loss);
    int length = snprintf(
        line, sizeof line,
        "step %lld/%lld  loss %.4f  %snorm %.2f  %s tokens/s  %sFLOP/s  %s  %s left%s",
        (long long)s->step, (long long)s->steps, s->loss, held_out, s->norm,
        amount(speed, sizeof speed, s->tokens_per_second), amount(flops, sizeof flops, s->flops),
        cli_bytes(memory, sizeof memory, s->memory_bytes),
        duration(left, sizeof left, s->remaining), s->skipped ? "  not finite, left out" : "");
    if (j->slow_steps >= SLOW_STEPS && length < (int)sizeof line)
        length += snprintf(line + length, sizeof line - (size_t)length, "  rank %lld is slow",
                           (long long)j->slow);
    int wide = terminal ? columns() : 0;
    /* A line that wraps cannot be drawn over: the bar goes first, then the end of the line. */
    bool has_bar = terminal && (wide == 0 || length + BAR + 4 <= wide);
    if (wide > 1 && length >= wide) line[wide - 1] = '\0';
    if (has_bar)
        printf("\r[%s] %s\033[K", bar, line);
    else if (terminal)
        printf("\r%s\033[K", line);
    else
        puts(line);
    fflush(stdout);
}

static int show_step(const ts_train_step *s, void *context)
{
    job *j = context;
    double now = cli_now();
    bool last = s->step == s->steps || stopped, evaluated = !isnan(s->eval_loss);
    bool due = j->every > 0 ? s->step % j->every == 0 : now - j->shown > (j->terminal ? 0.1 : 2.0);
    if (j->first == 0) j->first = now;
    watch(j, s);
    if (!j->quiet && (last || s->step == 1 || evaluated || due)) {
        draw(s, j);
        j->shown = now;
    }
    if (last && j->terminal && !j->quiet) printf("\n");
    return 0;
}

static ts_status work(ts_rank *me, void *argument)
{
    job *j = argument;
    ts_train_options options = TS_INIT(ts_train_options);
    options.late = 1;
    options.on_plan = show_plan;
    options.on_step = show_step;
    options.stop = asked_to_stop;
    options.context = j;
    ts_train_result result;
    ts_status status = ts_train_run(me, j->config, &options, &result);
    if (ts_rank_index(me) == 0)
        j->result = result;
    else
        ts_text_release(&result.sample);
    return status;
}

static int print_result(const job *j)
{
    const ts_train_result *r = &j->result;
    char time[32];
    if (r->model[0] == '\0') return 0; /* rank 0 is in another process */
    if (r->sample.length > 0) {
        printf("\n---- sample ----\n");
        fwrite(r->sample.data, 1, r->sample.length, stdout);
        printf("\n----------------\n\n");
    }
    printf("%s after step %lld: loss %.4f, %s\n", r->stopped ? "stopped" : "done",
           (long long)r->step, r->loss, duration(time, sizeof time, r->seconds));
    if (r->bubble_measured > 0)
        printf("stages  idle %.1f %% by the schedule, %.1f %% measured in the last step\n",
               100 * r->bubble, 100 * r->bubble_measured);
    if (r->replay_reordered > 0)
        printf("replay  a step takes %.2f ms instead of %.2f, predicted %.2f instead of %.2f; %lld "
               "pieces of work moved\n",
               1e3 * r->replay_reordered, 1e3 * r->replay_recorded,
               1e3 * r->replay_reordered_predicted, 1e3 * r->replay_recorded_predicted,
               (long long)r->replay_moved);
    if (!isnan(r->eval_best))
        printf("held out: best loss %.4f after step %lld%s\n", r->eval_best,
               (long long)r->eval_best_step, r->patience_ended ? ", none better since: ended" : "");
    if (j->first > 0)
        printf("first step done %.0f ms after the start\n", 1e3 * (j->first - j->began));
    printf("model   %s\nlog     %s\n", r->model, r->log);
    if (r->report[0]) printf("report  %s\n", r->report);
    return 0;
}

static int run(job *j)
{
    ts_world_options options = TS_INIT(ts_world_options);
    char text[512], error[1024] = "";
    bool launched = ts_launcher() != NULL;
    ts_train_config_get(j->config, "parallel.mesh", text, sizeof text);
    if (!launched) {
        options.engine = "threads";
        if (cli_mesh_ranks(text, &options.rank_count) != TS_OK)
            return cli_fail_usage("train", "parallel.mesh: %s", ts_last_error());
    }
    ts_train_config_get(j->config, "log.every", text, sizeof text);
    j->every = strtoll(text, NULL, 10);
    ts_train_config_get(j->config, "train.seed", text, sizeof text);
    options.seed = strtoull(text, NULL, 10);
    char device[16];
    ts_train_config_get(j->config, "train.device", device, sizeof device);
    const char *said = getenv("TESSERA_DEVICE");
    bool elsewhere = strcmp(device, "auto") == 0 && said != NULL && said[0] != '\0';
    if (!elsewhere) options.device = device;
    ts_train_config_get(j->config, "train.deterministic", text, sizeof text);
    if (strcmp(text, "0") == 0) (void)setenv("TESSERA_DETERMINISTIC", "0", 1);
    char topology[512];
    ts_train_config_get(j->config, "parallel.topology", topology, sizeof topology);
    if (strcmp(topology, "auto") != 0) options.topology = topology;
    ts_train_config_get(j->config, "comm.reduce", text, sizeof text);
    if (strcmp(text, "auto") != 0) (void)setenv("TESSERA_REDUCE", text, 1);
    options.events = 1 << 15; /* a step's, so that all are counted */
    options.watch = 1;
    struct sigaction action = { .sa_handler = stop, .sa_flags = SA_RESTART };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    ts_status status = ts_launch_with(&options, work, j, error, sizeof error);
    int code = status == TS_OK ? print_result(j) : cli_fail("train", "%s", error);
    ts_text_release(&j->result.sample);
    return code;
}

static int print_config(const ts_train_config *config)
{
    size_t length = ts_train_config_text(config, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL) return cli_fail("train", "out of memory");
    ts_train_config_text(config, text, length + 1);
    fputs(text, stdout);
    free(text);
    return 0;
}

/* A key, or all of a section, with the value that it has. */
static int explain(const ts_train_config *config, const char *key)
{
    size_t length = ts_train_config_explain(config, key, NULL, 0);
    if (length == 0)
        return cli_fail_usage("train",
                              "--explain: there is no key \"%s\"; --print-config lists all", key);
    char *text = malloc(length + 1);
    if (text == NULL) return cli_fail("train", "out of memory");
    ts_train_config_explain(config, key, text, length + 1);
    fputs(text, stdout);
    free(text);
    return 0;
}

static int configure(ts_train_config *config, const char *path, const cli_list *sets)
{
    if (path && ts_train_config_read(config, path) != TS_OK)
        return cli_fail_usage("train", "%s", ts_last_error());
    for (size_t i = 0; i < sets->count; i++)
        if (ts_train_config_set(config, sets->item[i]) != TS_OK)
            return cli_fail_usage("train", "--set %s", ts_last_error());
    return -1;
}

static int set_trace(ts_train_config *config, const char *steps)
{
    char text[64];
    snprintf(text, sizeof text, "log.trace=%s", steps);
    if (ts_train_config_set(config, text) == TS_OK) return -1;
    return cli_fail_usage("train", "--trace: %s", ts_last_error());
}

int cli_train(int argc, char **argv)
{
    job j = { .terminal = isatty(STDOUT_FILENO) == 1, .began = cli_now() };
    cli_list sets = { 0 };
    bool print = false, plan = false, json = false;
    const char *key = NULL, *trace = NULL;
    int64_t flops = 0;
    const cli_option options[] = {
        CLI_LIST("set", &sets, "KEY=VALUE", "instead of what CONFIG says: train.steps=100"),
        CLI_FLAG("print-config", &print, "print the whole configuration and end"),
        CLI_TEXT("explain", &key, "KEY",
                 "say what a key (train.steps) or the keys of a section (train) mean, and end"),
        CLI_FLAG("plan-only", &plan,
                 "print memory, traffic and time of a step and end; needs no data and no ranks"),
        CLI_FLAG("json", &json, "with --plan-only: as JSON"),
        CLI_INT("gflops", &flops, 1, 1000000000,
                "with --plan-only: of products of a rank, for the time (default: measured here)"),
        CLI_TEXT("trace", &trace, "STEPS",
                 "write these steps, 10-12, to OUTPUT/trace.json for Perfetto"),
        CLI_FLAG("quiet", &j.quiet, "no plan and no progress, only the result"),
        CLI_END
    };
    const cli_usage usage = {
        "train", "CONFIG [options]",
        "Trains a model as an INI file says; `tessera train --print-config` lists all keys. Run "
        "again after Ctrl-C, it goes on where it stopped.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc > 2 || (argc < 2 && !print && !key))
        return cli_fail_usage("train", "needs one CONFIG file");
    if (!plan && (json || flops > 0))
        return cli_fail_usage("train", "--%s is for --plan-only", json ? "json" : "gflops");
    if (ts_train_config_create(&j.config) != TS_OK) return cli_fail("train", "%s", ts_last_error());
    code = configure(j.config, argc > 1 ? argv[1] : NULL, &sets);
    if (code < 0 && trace) code = set_trace(j.config, trace);
    if (code < 0 && key) code = explain(j.config, key);
    if (code < 0 && print) code = print_config(j.config);
    if (code < 0 && plan) code = cli_train_plan(j.config, json, 1e9 * (double)flops);
    if (code < 0 && ts_train_config_check(j.config) != TS_OK)
        code = cli_fail_usage("train", "%s", ts_last_error());
    if (code < 0) code = run(&j);
    ts_train_config_destroy(j.config);
    return code;
}
