/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - from options, command line and environment to settled numbers.
 *
 * The order is the launcher, the caller's option, the environment, the default (cores of the
 * machine, one minute). A value that is out of range is refused with its name and text: a job that
 * silently runs on one rank because of a typo costs more than one that does not start. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/intmath.h"
#include "base/thread.h"
#include "runtime/runtime.h"

enum { TIMEOUT_MS_DEFAULT = 60000, EVENTS_DEFAULT = 4096, EVENTS_MAX = 1 << 24 };

static const char *const engine_names[] = { "threads", "mpi", "model", "nccl", NULL };

/* A whole number in [low, high], nothing around it. `name` is the option or variable. */
static ts_status parse_number(const char *name, const char *text, int64_t low, int64_t high,
                              int64_t *out)
{
    tsi_cursor cursor = tsi_cursor_of(name, text);
    int64_t value = 0;
    if (!tsi_cursor_int(&cursor, &value) || !tsi_cursor_done(&cursor) || value < low ||
        value > high) {
        return TSI_FAIL(TS_ERR_ARG, "%s: expected a whole number from %lld to %lld, found \"%s\"",
                        name, (long long)low, (long long)high, text);
    }
    *out = value;
    return TS_OK;
}

/* The variable's number, or `otherwise` if it is not set. An empty variable counts as not set. */
static ts_status number_from_environment(const char *name, int64_t low, int64_t high,
                                         int64_t otherwise, int64_t *out)
{
    const char *text = getenv(name);
    *out = otherwise;
    if (text == NULL || text[0] == '\0') return TS_OK;
    return parse_number(name, text, low, high, out);
}

static ts_status number_in_range(const char *name, int64_t value, int64_t low, int64_t high)
{
    if (value >= low && value <= high) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "%s: expected a whole number from %lld to %lld, found %lld", name,
                    (long long)low, (long long)high, (long long)value);
}

static ts_status engine_by_name(const char *source, const char *name, tsi_engine_id *out)
{
    for (int i = 0; engine_names[i] != NULL; i++) {
        if (strcmp(name, engine_names[i]) == 0) {
            *out = (tsi_engine_id)i;
            return TS_OK;
        }
    }
    const char *near = tsi_text_nearest(name, engine_names);
    return TSI_FAIL(TS_ERR_ARG, "%s: there is no engine \"%s\" (threads, mpi, model, nccl)%s%s%s",
                    source, name, near ? "; did you mean \"" : "", near ? near : "",
                    near ? "\"?" : "");
}

static ts_status name_engine(tsi_settings *settings)
{
    const char *launcher = ts_launcher();
    const char *variable = getenv("TESSERA_ENGINE");
    if (settings->user.engine != NULL) {
        settings->why = "asked for by the program";
        return engine_by_name("engine", settings->user.engine, &settings->engine);
    }
    if (settings->user.mpi_comm != NULL) {
        settings->why = "the program gave an MPI communicator";
        settings->engine = TSI_ENGINE_MPI;
    } else if (variable != NULL && variable[0] != '\0') {
        settings->why = "asked for by TESSERA_ENGINE";
        return engine_by_name("TESSERA_ENGINE", variable, &settings->engine);
    } else if (launcher != NULL) {
        settings->why = launcher;
        settings->engine = TSI_ENGINE_MPI;
    } else {
        settings->why = "no launcher started this process";
        settings->engine = TSI_ENGINE_THREADS;
    }
    return TS_OK;
}

/* nccl stands on what carries the host's memory: processes, or the threads of this one. */
static ts_status choose_engine(tsi_settings *settings)
{
    TSI_TRY(name_engine(settings));
    settings->nccl = settings->engine == TSI_ENGINE_NCCL;
    if (!settings->nccl) return TS_OK;
    bool processes = ts_launcher() != NULL || settings->user.mpi_comm != NULL;
    settings->engine = processes ? TSI_ENGINE_MPI : TSI_ENGINE_THREADS;
    return TS_OK;
}

/* The count of ranks, for the engines that do not get it from a launcher. */
static ts_status settle_rank_count(tsi_settings *settings)
{
    ts_world_options *user = &settings->user;
    int64_t most =
        settings->engine == TSI_ENGINE_MODEL ? TSI_RANKS_MODEL_MAX : TSI_RANKS_THREADS_MAX;
    if (user->rank_count != 0) return number_in_range("rank_count", user->rank_count, 1, most);
    return number_from_environment("TESSERA_RANKS", 1, most, tsi_core_count(), &user->rank_count);
}

static ts_status settle_model_ranks(const ts_world_options *user)
{
    TSI_TRY(number_in_range("model_rank_count", user->model_rank_count, 0,
                            tsi_min_i64(user->rank_count, TSI_RANKS_THREADS_MAX)));
    if (user->model_ranks == NULL) {
        if (user->model_rank_count <= 1) return TS_OK;
        return TSI_FAIL(TS_ERR_NULL, "model_ranks is NULL but model_rank_count is %lld",
                        (long long)user->model_rank_count);
    }
    for (int64_t i = 0; i < user->model_rank_count; i++) {
        TSI_TRY(number_in_range("model_ranks", user->model_ranks[i], 0, user->rank_count - 1));
        if (i > 0 && user->model_ranks[i] <= user->model_ranks[i - 1]) {
            return TSI_FAIL(TS_ERR_ARG, "model_ranks must ascend, found %lld after %lld",
                            (long long)user->model_ranks[i], (long long)user->model_ranks[i - 1]);
        }
    }
    return TS_OK;
}

/* Settles `field`: the option if it is set, else the variable, else the default. */
static ts_status settle(const char *option, const char *variable, int64_t high, int64_t otherwise,
                        int64_t *field)
{
    if (*field != 0) return number_in_range(option, *field, 1, high);
    return number_from_environment(variable, 1, high, otherwise, field);
}

static ts_status check_word(const char *variable, const char *const *words)
{
    const char *text = getenv(variable);
    char known[64] = "";
    if (text == NULL || text[0] == '\0') return TS_OK;
    for (size_t i = 0, at = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) return TS_OK;
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", words[i]);
        TSI_ASSERT(at < sizeof known);
    }
    return TSI_FAIL(TS_ERR_ARG, "%s: there is no \"%s\" (%s)", variable, text, known);
}

/* What is read where it is used, at a time when nobody could refuse it. */
static ts_status check_others(void)
{
    enum { THREADS_MAX = 1024, RUNS_MAX = 1000, WORDS_MAX = 4 };
    static const struct {
        const char *variable, *words[WORDS_MAX]; /* up to NULL */
    } row[] = { { "TESSERA_FALLBACK", { "allow", "warn", "forbid" } },
                { "TESSERA_ISA", { "base", "avx2", "avx512" } },
                { "TESSERA_DEVICE_SYNC", { "0", "1" } },
                { "TESSERA_MPI_SHM", { "0", "1" } },
                { "TESSERA_MPI_CMA", { "0", "1" } },
                { "TESSERA_DETERMINISTIC", { "0", "1" } },
                { "TESSERA_GUESTS", { "off", "on" } },
                { "TESSERA_CUDNN", { "off", "on" } },
                { "TESSERA_CUDA_BESIDE", { "off", "on" } },
                { "TESSERA_CUDA_EARLY", { "off", "on" } } };
    int64_t number;
    for (size_t i = 0; i < TSI_COUNT_OF(row); i++)
        TSI_TRY(check_word(row[i].variable, row[i].words));
    TSI_TRY(number_from_environment("TESSERA_THREADS", 1, THREADS_MAX, 1, &number));
    TSI_TRY(number_from_environment("TESSERA_CUDNN_RUNS", 1, RUNS_MAX, 1, &number));
    return number_from_environment("TESSERA_QUEUE_SEED", 0, INT64_MAX, 1, &number);
}

/* "2": nodes of two ranks; "3, 1": one of three, then nodes of one. */
static ts_status settle_nodes(tsi_settings *settings)
{
    const char *text = getenv("TESSERA_NODES");
    if (text == NULL || text[0] == '\0') return TS_OK;
    tsi_cursor cursor = tsi_cursor_of("TESSERA_NODES", text);
    do {
        int64_t size = 0;
        if (settings->node_size_count == TSI_NODE_SIZES_MAX || !tsi_cursor_int(&cursor, &size) ||
            size < 1)
            return tsi_cursor_fail(&cursor, "the ranks of a node, of up to 64 nodes");
        settings->node_size[settings->node_size_count++] = size;
    } while (tsi_cursor_take(&cursor, ','));
    return tsi_cursor_done(&cursor) ? TS_OK : tsi_cursor_fail(&cursor, "a comma, or the end");
}

ts_status tsi_settings_resolve(const ts_world_options *options, tsi_settings *out)
{
    *out = (tsi_settings){ .user = TS_INIT(ts_world_options) };
    if (options != NULL) {
        if (options->struct_size < sizeof(size_t) || options->struct_size > 4096) {
            return TSI_FAIL(TS_ERR_ARG,
                            "ts_world_options.struct_size is %zu; initialise with "
                            "TS_INIT(ts_world_options)",
                            options->struct_size);
        }
        size_t known =
            options->struct_size < sizeof *options ? options->struct_size : sizeof *options;
        memcpy(&out->user, options, known);
        out->user.struct_size = sizeof *options;
    }
    ts_world_options *user = &out->user;
    TSI_TRY(choose_engine(out));
    TSI_TRY(settle_rank_count(out));
    if (out->engine == TSI_ENGINE_MODEL) TSI_TRY(settle_model_ranks(user));
    TSI_TRY(settle("threads_per_process", "TESSERA_THREADS_PER_PROCESS", TSI_RANKS_THREADS_MAX, 1,
                   &user->threads_per_process));
    TSI_TRY(settle("timeout_ms", "TESSERA_TIMEOUT_MS", INT64_MAX / 1000000, TIMEOUT_MS_DEFAULT,
                   &user->timeout_ms));
    TSI_TRY(settle("events", "TESSERA_EVENTS", EVENTS_MAX, EVENTS_DEFAULT, &user->events));
    const char *device = getenv("TESSERA_DEVICE");
    if (user->device == NULL && device != NULL && device[0] != '\0') user->device = device;
    const char *topology = getenv("TESSERA_TOPOLOGY");
    if (user->topology == NULL && topology != NULL && topology[0] != '\0')
        user->topology = topology;
    if (user->topology != NULL && strcmp(user->topology, "auto") == 0) user->topology = NULL;
    TSI_TRY(settle_nodes(out));
    TSI_TRY(number_in_range("progress", user->progress, 0, 1));
    TSI_TRY(settle("handles_kept", "TESSERA_HANDLES_KEPT", INT64_MAX, 0, &user->handles_kept));
    TSI_TRY(check_others());
    out->trace = getenv("TESSERA_TRACE");
    if (out->trace != NULL && out->trace[0] == '\0') out->trace = NULL;
    return TS_OK;
}

/* The text behind "--ts-<name>=" if the argument is that option, else NULL. */
static const char *argument_value(const char *argument, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0 || argument[length] != '=') return NULL;
    return argument + length + 1;
}

static ts_status take_argument(const char *argument, ts_world_options *options)
{
    static const char *const names[] = { "--ts-ranks", "--ts-engine", "--ts-timeout-ms",
                                         "--ts-seed",  "--ts-device", NULL };
    const char *value;
    if ((value = argument_value(argument, names[0])) != NULL) {
        return parse_number(names[0], value, 1, TSI_RANKS_MODEL_MAX, &options->rank_count);
    }
    if ((value = argument_value(argument, names[1])) != NULL) {
        tsi_engine_id ignored;
        options->engine = value;
        return engine_by_name(names[1], value, &ignored);
    }
    if ((value = argument_value(argument, names[2])) != NULL) {
        return parse_number(names[2], value, 1, INT64_MAX / 1000000, &options->timeout_ms);
    }
    if ((value = argument_value(argument, names[3])) != NULL) {
        int64_t seed = 0;
        ts_status status = parse_number(names[3], value, 0, INT64_MAX, &seed);
        options->seed = (uint64_t)seed;
        return status;
    }
    if ((value = argument_value(argument, names[4])) != NULL) {
        options->device = value;
        return TS_OK;
    }
    const char *near = tsi_text_nearest(argument, names);
    return TSI_FAIL(TS_ERR_ARG,
                    "unknown option \"%s\" (known: --ts-ranks=N, --ts-engine=NAME, "
                    "--ts-timeout-ms=N, --ts-seed=N)%s%s%s",
                    argument, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

ts_status tsi_settings_arguments(int argc, char **argv, ts_world_options *options)
{
    for (int i = 1; i < argc && argv != NULL && argv[i] != NULL; i++) {
        if (strcmp(argv[i], "--") == 0) break;
        if (strncmp(argv[i], "--ts-", 5) == 0) TSI_TRY(take_argument(argv[i], options));
    }
    return TS_OK;
}
