/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - INI configurations: a table of keys, and reading, setting and printing by it.
 *
 *   [section]          blanks around names and values do not count
 *   key = value        a line that begins with # or ; is a comment
 *
 * Paths that are read are looked for beside the file, then in the working directory.
 *
 * A key that is not in the table is an error that names file, line and the nearest key; so is a
 * value that cannot be read or is out of its range. Nothing is guessed or repaired. Of a key that a
 * file says twice the last value counts, and a warning names both lines. */
#include "train/config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "model/model.h"
#include "plan/topology.h"
#include "train/run.h"

typedef enum kind { KIND_TEXT, KIND_PATH, KIND_INT, KIND_REAL } kind; /* PATH: is read */

typedef struct key {
    const char *section, *name, *otherwise; /* its default */
    kind kind;
    size_t offset, size;
    double low, high;
    const char *help;
} key;

#define FIELD(section, name)                                                                       \
    offsetof(ts_train_config, section.name), sizeof(((ts_train_config *)0)->section.name)
#define TEXT(section, name, otherwise, help)                                                       \
    {                                                                                              \
#section, #name, otherwise, KIND_TEXT, FIELD(section, name), 0, 0, help                    \
    }
#define PATH(section, name, otherwise, help)                                                       \
    {                                                                                              \
#section, #name, otherwise, KIND_PATH, FIELD(section, name), 0, 0, help                    \
    }
#define INT(section, name, otherwise, low, high, help)                                             \
    {                                                                                              \
#section, #name, otherwise, KIND_INT, FIELD(section, name), low, high, help                \
    }
#define REAL(section, name, otherwise, low, high, help)                                            \
    {                                                                                              \
#section, #name, otherwise, KIND_REAL, FIELD(section, name), low, high, help               \
    }

static const key keys[] = {
    PATH(model, directory, "", "start from this model; the sizes below are then not read"),
    TEXT(model, family, "llama", "llama, qwen3, mixtral, gpt2, qwen3_moe or deepseek_v3"),
    INT(model, vocab, "0", 0, 1e9, "0: as the tokenizer has"),
    INT(model, hidden, "128", 1, 1e7, "width of the residual stream"),
    INT(model, intermediate, "0", 0, 1e8, "width inside the feed-forward part; 0: 8/3 of hidden"),
    INT(model, layers, "4", 1, 1e4, "blocks"),
    INT(model, heads, "4", 1, 1e5, "of attention"),
    INT(model, kv_heads, "0", 0, 1e5, "of keys and values; 0: as heads"),
    INT(model, head_dim, "0", 0, 1e5, "0: hidden / heads"),
    INT(model, positions, "0", 0, 1e9, "longest sequence; 0: data.context"),
    INT(model, experts, "0", 0, 1e5, "mixtral, qwen3_moe, deepseek_v3"),
    INT(model, experts_per_token, "0", 0, 1e5, "chosen by the router"),
    INT(model, expert_width, "0", 0, 1e8, "intermediate size of one expert; 0: intermediate"),
    INT(model, route_sum, "1", 0, 1, "1: weights of the chosen experts add up to 1"),
    INT(model, shared_experts, "0", 0, 1e5, "deepseek_v3: so many see every token"),
    INT(model, expert_groups, "1", 1, 1e5, "deepseek_v3: the router chooses groups first"),
    INT(model, groups_per_token, "1", 1, 1e5, "deepseek_v3: groups chosen"),
    INT(model, dense_first, "0", 0, 1e4, "deepseek_v3: first layers without experts"),
    REAL(model, route_scale, "1", 0, 1e9, "deepseek_v3: on the weights of chosen experts"),
    INT(model, q_rank, "0", 0, 1e7, "deepseek_v3: latent size of queries; 0: none"),
    INT(model, kv_rank, "0", 0, 1e7, "deepseek_v3: latent size of keys and values"),
    INT(model, plain_dim, "0", 0, 1e5, "deepseek_v3: elements of a head that are not rotated"),
    INT(model, value_dim, "0", 0, 1e5, "deepseek_v3: elements of a value; 0: plain_dim"),
    INT(model, tied, "-1", -1, 1,
        "1: the head is the embedding; 0: it has a weight of its own; -1: of gpt2 1, else 0"),
    REAL(model, norm_epsilon, "1e-5", 0, 1, "of the norms"),
    REAL(model, init_deviation, "0.02", 0, 10, "of random weights"),
    REAL(model, rope_theta, "10000", 1, 1e12, "base of rotary positions"),
    TEXT(model, dtype, "f32", "of parameters: f32, f64, bf16"),
    TEXT(model, compute, "", "of activations and products: f32, f64, bf16, f16; empty: as stored"),
    PATH(data, path, "",
         "a text file, a .jsonl file, or the prefix of token files (tessera tokenize)"),
    TEXT(data, weights, "",
         "one for each of several paths, which are then separated by commas: their shares of rows"),
    PATH(data, tokenizer, "byte", "byte, or a tokenizer.json: for text"),
    TEXT(data, json_key, "text", "of a .jsonl file: the member of each line that is a document"),
    INT(data, context, "128", 1, 1e8, "tokens of a row"),
    INT(data, shuffle, "1", 0, 1, "0: rows as they lie"),
    TEXT(data, documents, "together",
         "separate: attention stays within the documents that are packed into a row"),
    INT(data, end, "-1", -1, 1e9, "the token that ends a document, for separate ones"),
    PATH(data, held_out, "", "a text or token files that are not trained on, for evaluation"),
    INT(data, held_out_rows, "0", 0, 1e12, "so many of their rows; 0: all"),
    TEXT(train, output, "run", "directory for the model, state, log and report"),
    TEXT(train, memory, "auto",
         "what a rank may hold: 80GiB; a plan that needs more is refused before anything is made; "
         "auto: what is free; none: not asked"),
    TEXT(train, device, "auto",
         "cpu, cuda, queue; auto: as TESSERA_DEVICE says, else a GPU that loads, else cpu"),
    INT(train, deterministic, "1", 0, 1,
        "0: a GPU may add up in any order where that is faster; runs do not repeat bit for bit"),
    INT(train, steps, "100", 1, 1e12, "of the whole run"),
    INT(train, stop_after, "0", 0, 1e12, "ends after this step, as if stopped; 0: after the last"),
    INT(train, batch, "16", 1, 1e9, "rows of a step, of all ranks together"),
    INT(train, accumulate, "1", 1, 1e6, "parts in which a step's rows are run, one after another"),
    INT(train, eval_every, "0", 0, 1e12,
        "the loss of data.held_out is measured after every so many steps and the last; 0: never"),
    INT(train, patience, "0", 0, 1e12,
        "the run ends after so many evaluations in a row that were no better; 0: it does not"),
    REAL(train, clip, "1", 0, 1e30, "largest total norm of the gradients; 0: not clipped"),
    REAL(train, z_loss, "0", 0, 1e6,
         "factor of the squared log-sum-exp of logits, which is trained on beside the loss"),
    INT(train, loss_rows, "0", -1, 1e12,
        "rows of a rank whose logits exist at a time, with their gradients; 0: all; -1: as many as "
        "have 32 MiB of logits, at least 256; with tp, stages or z_loss: all"),
    REAL(train, loss_scale, "1", 1e-30, 1e30, "factor on the loss in backward; f16 needs one"),
    INT(train, loss_scale_every, "0", 0, 1e12,
        "the factor doubles after so many finite steps, halves after one that is not; 0: fixed"),
    INT(train, skips_max, "32", 1, 1e12,
        "steps in a row that may be left out because they are not finite; then the run ends"),
    INT(train, find_not_finite, "1", 0, 1,
        "1: a step that ends the run because it is not finite is run again to find where it began"),
    INT(train, seed, "1", 0, 9e15, "of weights and of the order of the data"),
    INT(train, save_every, "0", 0, 1e12, "an older name of checkpoint.every, which goes before it"),
    INT(train, replay, "0", 0, 2,
        "1: the third step is recorded and the rest run from it: same bits; 2: in a better order"),
    INT(train, resume, "1", 0, 1, "1: go on from the state in output, if there is one"),
    INT(checkpoint, every, "0", 0, 1e12, "steps between saved states; 0: at the end alone"),
    TEXT(checkpoint, keep, "last 2",
         "which states stay: last N, every N (steps), best N (by loss), several by commas"),
    INT(checkpoint, async, "0", 0, 1, "1: states are written while the next steps run"),
    INT(checkpoint, verify, "1", 0, 1, "0: hashes are not checked when a state is read"),
    TEXT(optimizer, kind, "adamw", "adamw, sgd or muon"),
    REAL(optimizer, rate, "1e-3", 0, 1e6, "the learning rate at its highest"),
    REAL(optimizer, beta1, "0.9", 0, 1, "adamw"),
    REAL(optimizer, beta2, "0.95", 0, 1, "adamw"),
    REAL(optimizer, epsilon, "1e-8", 0, 1, "adamw"),
    REAL(optimizer, weight_decay, "0.1", 0, 1e6, "per unit of the learning rate"),
    TEXT(optimizer, groups, "",
         "parameters that are trained otherwise: *norm*: decay=0; lm_head.*: rate=0.5; "
         "model.layers.0.*: frozen; the first pattern counts"),
    TEXT(optimizer, moments, "f32", "adamw: f32, or bf16, rounded by chance"),
    REAL(optimizer, momentum, "0", 0, 1, "sgd"),
    INT(optimizer, nesterov, "0", 0, 1, "sgd"),
    REAL(optimizer, muon_momentum, "0.95", 0, 1, "muon"),
    INT(optimizer, muon_steps, "5", 1, 100, "muon: of Newton-Schulz"),
    TEXT(optimizer, muon_adjust, "rms",
         "muon: rms, 0.2 sqrt(max(m, n)) times the rate, which serves adamw too; or original, "
         "sqrt(max(1, m / n)) times"),
    TEXT(optimizer, muon_dtype, "f32", "muon: of products and of what travels: f32 or bf16"),
    TEXT(optimizer, muon_adamw, "",
         "muon: patterns of matrices that go by adamw: *.router.*, lm_head*; none; empty: "
         "embeddings and heads"),
    INT(optimizer, warmup, "0", 0, 1e12, "steps in which the rate rises"),
    TEXT(optimizer, decay, "cosine", "cosine, linear, sqrt or constant"),
    REAL(optimizer, decay_share, "-1", -1, 1, "of the steps; -1: all after the warm-up"),
    REAL(optimizer, floor, "0.1", 0, 1, "the rate at the end, as a factor"),
    TEXT(parallel, mesh, "dp=1", "roles and sizes: fsdp=2, tp=2"),
    TEXT(parallel, plan, "", "dp, tp or sp; empty: sp where the mesh has an axis tp, else dp"),
    INT(parallel, ep, "1", 1, 1e9, "experts are cut over groups of so many neighbouring ranks"),
    TEXT(parallel, schedule, "1F1B",
         "with an axis pp: GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble, "
         "ZBVZeroBubble, DualPipeV, search, or a file"),
    TEXT(parallel, stages, "",
         "with an axis pp: of a rank, 2; with blocks of each, 2: 3 4 4 3, or 2: cost; empty: what "
         "the schedule needs"),
    INT(parallel, micro_batches, "4", 1, 1048576, "with an axis pp: of a part of a step"),
    INT(parallel, prefetch, "0", 0, 1048576,
        "with an axis pp: a receive begins at most so many actions before its use, which bounds "
        "what is kept; 0: with its send"),
    TEXT(parallel, recompute, "none",
         "none; full: layers run again in backward; N: every N-th; select: what is cheap does"),
    TEXT(parallel, reshard, "auto",
         "with an axis fsdp: gathered parameters go after forward (yes), stay (no), or K ranks keep"
         " them"),
    TEXT(parallel, attention, "auto",
         "with an axis cp: ring, gather or heads; auto: what costs least"),
    TEXT(parallel, balance, "auto",
         "how cp cuts rows: none, head_tail, per_document, ptrr; auto: by what attention sees"),
    TEXT(parallel, saved, "gathered",
         "with plan sp, rows that backward needs again: gathered; or sharded, and gathered again"),
    PATH(parallel, topology, "auto",
         "what plans take the links of the ranks for: a preset as 8xh100, or a file of bench comm; "
         "auto: by the nodes that are found, and the device"),
    REAL(experts, aux_loss, "0", 0, 1e6, "factor of the routers' loss of uneven loads, of a batch"),
    REAL(experts, sequence_loss, "0", 0, 1e6, "the same of each sequence"),
    REAL(experts, z_loss, "0", 0, 1e6, "factor of the routers' loss of large logits"),
    REAL(experts, bias_rate, "0", 0, 1e6, "deepseek_v3: biases of choosing move by it each step"),
    REAL(experts, capacity, "0", 0, 1e6,
         "an expert takes so many times its even share of a sequence's choices; 0: all"),
    TEXT(comm, reduce, "auto",
         "ordered: the same bits on every engine; native: of the engine nccl, its own order of "
         "adding; auto: as TESSERA_REDUCE says, else ordered"),
    INT(log, report, "1", 0, 1, "1: write report.html"),
    INT(log, tensorboard, "0", 0, 1, "1: write event files into OUTPUT/tensorboard"),
    TEXT(log, trace, "", "steps, 10-12, that go into OUTPUT/trace.json for Perfetto; empty: none"),
    INT(log, every, "0", 0, 1e12,
        "a line is printed every so many steps; 0: now and then; train.jsonl has every step"),
    INT(log, norms, "0", 0, 1e12,
        "norms of gradients by module go to OUTPUT/norms.jsonl every so many steps; 0: never"),
    INT(log, sample, "200", 0, 1e6, "tokens to generate at the end"),
    INT(log, sample_every, "0", 0, 1e12,
        "samples go to OUTPUT/samples.jsonl every so many steps, too; 0: at the end alone"),
    REAL(log, temperature, "0.7", 0, 100, "of the sample"),
    TEXT(log, prompt, "Once upon a time", "of the sample"),
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static void *field(ts_train_config *config, const key *k)
{
    return (char *)config + k->offset;
}

/* ---- setting --------------------------------------------------------------------------------- */

/* Where a value came from, for sentences: "tales.ini, line 3". */
typedef struct place {
    const char *what;
    int64_t line; /* 0: no line */
} place;

static ts_status fail_at(const place *at, const char *sentence)
{
    if (at->line == 0) return TSI_FAIL(TS_ERR_ARG, "%s: %s", at->what, sentence);
    return TSI_FAIL(TS_ERR_ARG, "%s, line %lld: %s", at->what, (long long)at->line, sentence);
}

static ts_status set_number(ts_train_config *config, const key *k, const char *value,
                            const place *at)
{
    tsi_cursor cursor = tsi_cursor_of(k->name, value);
    int64_t whole = 0;
    double real = 0;
    bool read =
        k->kind == KIND_INT ? tsi_cursor_int(&cursor, &whole) : tsi_cursor_real(&cursor, &real);
    if (k->kind == KIND_INT) real = (double)whole;
    char sentence[TSI_CONFIG_TEXT_MAX + 256];
    if (!read || !tsi_cursor_done(&cursor) || !(real >= k->low && real <= k->high)) {
        snprintf(sentence, sizeof sentence,
                 "%s.%s: expected a %snumber from %g to %g, found \"%s\"", k->section, k->name,
                 k->kind == KIND_INT ? "whole " : "", k->low, k->high, value);
        return fail_at(at, sentence);
    }
    if (k->kind == KIND_INT)
        *(int64_t *)field(config, k) = whole;
    else
        *(double *)field(config, k) = real;
    return TS_OK;
}

/* In other formats quotes are no part of a value; here they would be, of a path that nobody finds
 * and of a directory that is made. A prompt may well be in quotes. */
static bool is_quoted(const key *k, const char *value)
{
    size_t length = strlen(value);
    return length > 1 && (value[0] == '"' || value[0] == '\'') && value[length - 1] == value[0] &&
           strcmp(k->name, "prompt") != 0;
}

static ts_status set_key(ts_train_config *config, const key *k, const char *value, const place *at)
{
    if (k->kind == KIND_INT || k->kind == KIND_REAL) return set_number(config, k, value, at);
    char sentence[128];
    if (is_quoted(k, value)) {
        snprintf(sentence, sizeof sentence, "%s.%s: values are written without quotes", k->section,
                 k->name);
        return fail_at(at, sentence);
    }
    if (strlen(value) >= k->size) {
        snprintf(sentence, sizeof sentence, "%s.%s: is longer than %zu bytes", k->section, k->name,
                 k->size - 1);
        return fail_at(at, sentence);
    }
    memcpy(field(config, k), value, strlen(value) + 1);
    return TS_OK;
}

static ts_status fail_section(const char *section, const place *at)
{
    static const char *const names[] = { "model",    "data",    "train", "checkpoint", "optimizer",
                                         "parallel", "experts", "comm",  "log",        NULL };
    const char *near = tsi_text_nearest(section, names);
    char sentence[256];
    snprintf(sentence, sizeof sentence, "unknown section [%.64s]; %s%s%s", section,
             near ? "did you mean ["
                  : "there are model, data, train, checkpoint, optimizer, parallel, experts, "
                    "comm, log",
             near ? near : "", near ? "]?" : "");
    return fail_at(at, sentence);
}

static ts_status fail_key(const char *section, const char *name, const place *at)
{
    const char *names[KEYS + 1];
    size_t count = 0;
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].section, section) == 0) names[count++] = keys[i].name;
    names[count] = NULL;
    const char *near = tsi_text_nearest(name, names), *elsewhere = NULL;
    for (size_t i = 0; i < KEYS && !near; i++)
        if (strcmp(keys[i].name, name) == 0) elsewhere = keys[i].section;
    char sentence[320];
    snprintf(sentence, sizeof sentence, "unknown key \"%.64s\" in [%s]%s%s%s", name, section,
             near        ? "; did you mean \""
             : elsewhere ? "; it belongs to ["
                         : "",
             near        ? near
             : elsewhere ? elsewhere
                         : "",
             near        ? "\"?"
             : elsewhere ? "]"
                         : "");
    return fail_at(at, sentence);
}

static bool section_is_known(const char *section)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].section, section) == 0) return true;
    return false;
}

static const key *find(const char *section, const char *name)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

/* Cuts blanks off both ends, in place. */
static char *trimmed(char *text)
{
    static const char blanks[] = " \t\r";
    text += strspn(text, blanks);
    size_t length = strlen(text);
    while (length > 0 && strchr(blanks, text[length - 1]) != NULL)
        length--;
    text[length] = '\0';
    return text;
}

bool tsi_train_item(const char *list, int64_t index, char *out)
{
    for (; index > 0; index--) {
        list = strchr(list, ',');
        if (!list++) return false;
    }
    list += strspn(list, " \t");
    size_t length = strcspn(list, ",");
    while (length > 0 && strchr(" \t", list[length - 1]) != NULL)
        length--;
    if (length >= TSI_CONFIG_TEXT_MAX) return false;
    memcpy(out, list, length);
    out[length] = '\0';
    return true;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A key that a text has twice has its last value, as one that is appended to override: told, since
 * it may as well be a slip. */
static void mark_key(const key *k, int64_t *line_of, const place *at)
{
    int64_t *line = &line_of[k - keys];
    if (*line > 0)
        tsi_log(TSI_LOG_WARN, "%s, line %lld: %s.%s is said in line %lld already; this one counts",
                at->what, (long long)at->line, k->section, k->name, (long long)*line);
    *line = at->line;
}

static ts_status parse_line(ts_train_config *config, char *line, char *section, int64_t *line_of,
                            const place *at)
{
    line = trimmed(line);
    if (line[0] == '\0' || line[0] == '#' || line[0] == ';') return TS_OK;
    size_t length = strlen(line);
    if (line[0] == '[') {
        if (line[length - 1] != ']') return fail_at(at, "a section is written [name]");
        line[length - 1] = '\0';
        char *name = trimmed(line + 1);
        if (!section_is_known(name)) return fail_section(name, at);
        snprintf(section, 16, "%s", name);
        return TS_OK;
    }
    char *equals = strchr(line, '=');
    if (!equals) return fail_at(at, "expected \"key = value\" or \"[section]\"");
    if (section[0] == '\0') return fail_at(at, "a key before the first [section]");
    *equals = '\0';
    char *name = trimmed(line);
    const key *k = find(section, name);
    if (!k) return fail_key(section, name, at);
    mark_key(k, line_of, at);
    return set_key(config, k, trimmed(equals + 1), at);
}

ts_status ts_train_config_parse(ts_train_config *config, const char *what, const char *text)
{
    if (!config || !what || !text)
        return TSI_FAIL(TS_ERR_NULL, "train_config_parse: an argument is NULL");
    static const char order_mark[] = "\xEF\xBB\xBF"; /* what some editors put before UTF-8 */
    if (strncmp(text, order_mark, 3) == 0) text += 3;
    int64_t line_of[KEYS] = { 0 }; /* where each key was said */
    char *copy = tsi_strdup(text), section[16] = "";
    if (!copy) return tsi_fail_memory("a configuration", strlen(text));
    ts_status status = TS_OK;
    place at = { what, 0 };
    for (char *line = copy, *next; line && status == TS_OK; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        at.line++;
        status = parse_line(config, line, section, line_of, &at);
    }
    tsi_free(copy);
    return status;
}

/* Is it a file, a directory, or the prefix of token files? */
static bool path_is_there(const char *path)
{
    char shard[2 * TSI_CONFIG_TEXT_MAX + 16];
    snprintf(shard, sizeof shard, "%s-00000.bin", path);
    return access(path, F_OK) == 0 || access(shard, F_OK) == 0;
}

/* The same for each of data.path's several. */
static ts_status find_list(ts_train_config *config, const char *file, const char *slash,
                           const place *at)
{
    tsi_text list = { 0 };
    char one[TSI_CONFIG_TEXT_MAX], joined[2 * TSI_CONFIG_TEXT_MAX];
    for (int64_t i = 0; tsi_train_item(config->data.path, i, one); i++) {
        snprintf(joined, sizeof joined, "%.*s/%s", (int)(slash - file), file, one);
        bool beside = one[0] != '/' && path_is_there(joined);
        tsi_text_printf(&list, "%s%s", i > 0 ? ", " : "", beside ? joined : one);
    }
    char *text = tsi_text_take(&list);
    if (!text) return TS_ERR_MEMORY;
    ts_status status = set_key(config, find("data", "path"), text, at);
    tsi_free(text);
    return status;
}

/* Words that are no files. */
static bool is_built_in(const ts_train_config *config, const char *value)
{
    if (value == config->data.tokenizer) return strcmp(value, "byte") == 0;
    if (value != config->parallel.topology) return false;
    for (int32_t i = 0; tsi_topology_presets[i]; i++)
        if (strcmp(value, tsi_topology_presets[i]) == 0) return true;
    return strcmp(value, "auto") == 0;
}

/* What a file names is looked for beside it, then in the working directory, so that a configuration
 * can be moved together with its data. */
static ts_status find_paths(ts_train_config *config, const char *file)
{
    const char *slash = strrchr(file, '/');
    char joined[2 * TSI_CONFIG_TEXT_MAX];
    place at = { file, 0 };
    for (size_t i = 0; slash && i < KEYS; i++) {
        const char *value = field(config, &keys[i]);
        if (keys[i].kind != KIND_PATH || value[0] == '\0') continue;
        if (strcmp(keys[i].name, "path") == 0 && config->data.weights[0]) {
            TSI_TRY(find_list(config, file, slash, &at));
            continue;
        }
        if (value[0] == '/' || is_built_in(config, value)) continue;
        int length = snprintf(joined, sizeof joined, "%.*s/%s", (int)(slash - file), file, value);
        if (length < (int)sizeof joined && path_is_there(joined))
            TSI_TRY(set_key(config, &keys[i], joined, &at));
    }
    return TS_OK;
}

/* A byte of 0 would end the text unseen, and with it all that the lines behind it say. */
static ts_status check_bytes(const char *path, const char *text, size_t length)
{
    place at = { path, 1 };
    size_t end = strlen(text);
    if (end == length) return TS_OK;
    for (size_t i = 0; i < end; i++)
        at.line += text[i] == '\n';
    return fail_at(&at, "has a byte of 0, which is no text");
}

ts_status ts_train_config_read(ts_train_config *config, const char *path)
{
    if (!config || !path) return TSI_FAIL(TS_ERR_NULL, "train_config_read: an argument is NULL");
    char *text = NULL;
    size_t length = 0;
    TSI_TRY(tsi_file_read(path, 1 << 20, &text, &length));
    ts_status status = check_bytes(path, text, length);
    if (status == TS_OK) status = ts_train_config_parse(config, path, text);
    tsi_free(text);
    return status == TS_OK ? find_paths(config, path) : status;
}

ts_status ts_train_config_set(ts_train_config *config, const char *assignment)
{
    if (!config || !assignment)
        return TSI_FAIL(TS_ERR_NULL, "train_config_set: an argument is NULL");
    place at = { assignment, 0 };
    const char *equals = strchr(assignment, '='), *dot = strchr(assignment, '.');
    if (!equals || !dot || dot > equals) return fail_at(&at, "expected section.key=value");
    char *copy = tsi_strdup(assignment);
    if (!copy) return tsi_fail_memory("a configuration", strlen(assignment));
    char *name = copy + (dot - assignment) + 1, *value = copy + (equals - assignment) + 1;
    name[-1] = value[-1] = '\0';
    char *section = trimmed(copy);
    name = trimmed(name);
    ts_status status = TS_OK;
    const key *k = find(section, name);
    if (k)
        status = set_key(config, k, trimmed(value), &at);
    else
        status =
            section_is_known(section) ? fail_key(section, name, &at) : fail_section(section, &at);
    tsi_free(copy);
    return status;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_value(tsi_text *out, const ts_train_config *config, const key *k)
{
    const void *at = (const char *)config + k->offset;
    switch (k->kind) {
    case KIND_TEXT:
    case KIND_PATH:
        tsi_text_add(out, at);
        break;
    case KIND_INT:
        tsi_text_printf(out, "%lld", (long long)*(const int64_t *)at);
        break;
    case KIND_REAL:
        tsi_text_real(out, *(const double *)at);
        break;
    }
}

/* Copies what fits, as snprintf does. */
static size_t give(tsi_text *text, char *out, size_t size)
{
    size_t length = text->failed ? 0 : text->length;
    if (out && size > 0) {
        size_t n = length < size ? length : size - 1;
        if (n > 0) memcpy(out, text->data, n);
        out[n] = '\0';
    }
    tsi_text_release(text);
    return length;
}

int64_t ts_train_config_get(const ts_train_config *config, const char *name, char *out, size_t size)
{
    if (out && size > 0) out[0] = '\0';
    const char *dot = name ? strchr(name, '.') : NULL;
    if (!config || !dot || dot - name > 15) return -1;
    char section[16];
    snprintf(section, sizeof section, "%.*s", (int)(dot - name), name);
    const key *k = find(section, dot + 1);
    if (!k) return -1;
    tsi_text text = { 0 };
    print_value(&text, config, k);
    return (int64_t)give(&text, out, size);
}

size_t ts_train_config_explain(const ts_train_config *config, const char *name, char *out,
                               size_t size)
{
    tsi_text text = { 0 };
    const char *dot = name ? strchr(name, '.') : NULL;
    size_t section = dot ? (size_t)(dot - name) : name ? strlen(name) : 0;
    for (size_t i = 0; config && name && i < KEYS; i++) {
        const key *k = &keys[i];
        bool ours = strlen(k->section) == section && strncmp(k->section, name, section) == 0;
        if (!ours || (dot && strcmp(k->name, dot + 1) != 0)) continue;
        tsi_text_printf(&text, "%s.%s = ", k->section, k->name);
        print_value(&text, config, k);
        tsi_text_printf(&text, "\n    %s\n    ", k->help);
        if (k->kind == KIND_INT || k->kind == KIND_REAL)
            tsi_text_printf(&text, "a %snumber from %g to %g, ",
                            k->kind == KIND_INT ? "whole " : "", k->low, k->high);
        else
            tsi_text_add(&text, k->kind == KIND_PATH ? "a path, " : "text, ");
        tsi_text_printf(&text, "by default %s\n", k->otherwise[0] ? k->otherwise : "nothing");
    }
    return give(&text, out, size);
}

size_t ts_train_config_text(const ts_train_config *config, char *out, size_t size)
{
    tsi_text text = { 0 };
    for (size_t i = 0; config && i < KEYS; i++) {
        const key *k = &keys[i];
        if (i == 0 || strcmp(k->section, keys[i - 1].section) != 0)
            tsi_text_printf(&text, "%s[%s]\n", i > 0 ? "\n" : "", k->section);
        tsi_text_printf(&text, "# %s\n%s = ", k->help, k->name);
        print_value(&text, config, k);
        tsi_text_add(&text, "\n");
    }
    return give(&text, out, size);
}

/* ---- making and checking --------------------------------------------------------------------- */

ts_status ts_train_config_create(ts_train_config **out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "train_config_create: out is NULL");
    *out = NULL;
    ts_train_config *config = tsi_calloc(1, sizeof *config);
    if (!config) return tsi_fail_memory("a configuration", sizeof *config);
    place at = { "defaults", 0 };
    for (size_t i = 0; i < KEYS; i++) {
        ts_status status = set_key(config, &keys[i], keys[i].otherwise, &at);
        if (status == TS_OK) continue;
        tsi_free(config);
        return status;
    }
    *out = config;
    return TS_OK;
}

void ts_train_config_destroy(ts_train_config *config)
{
    tsi_free(config);
}

static ts_status check_word(const char *name, const char *value, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0) return TS_OK;
    const char *near = tsi_text_nearest(value, words);
    if (near)
        return TSI_FAIL(TS_ERR_ARG, "%s: unknown \"%s\"; did you mean \"%s\"?", name, value, near);
    tsi_text list = { 0 };
    for (size_t i = 0; words[i]; i++)
        tsi_text_printf(&list, "%s%s", i > 0 ? ", " : "", words[i][0] ? words[i] : "nothing");
    ts_status status = TSI_FAIL(TS_ERR_ARG, "%s: unknown \"%s\"; it is one of %s", name, value,
                                list.data ? list.data : "");
    tsi_text_release(&list);
    return status;
}

/* "3", but not "0" or "03": every third layer. */
static bool is_count(const char *word)
{
    size_t digits = strspn(word, "0123456789");
    return digits > 0 && digits < 10 && word[digits] == '\0' && word[0] != '0';
}

/* Ends of ranges that are no values: what they would do to a run. */
static ts_status check_numbers(const ts_train_config *c)
{
    const tsi_optimizer_keys *o = &c->optimizer;
    if (o->rate <= 0) return TSI_FAIL(TS_ERR_ARG, "optimizer.rate: must be above 0");
    if (o->beta1 >= 1 || o->beta2 >= 1)
        return TSI_FAIL(TS_ERR_ARG,
                        "optimizer.%s: is %g, must be below 1: moments would never see a gradient",
                        o->beta1 >= 1 ? "beta1" : "beta2", o->beta1 >= 1 ? o->beta1 : o->beta2);
    if (o->epsilon <= 0)
        return TSI_FAIL(TS_ERR_ARG, "optimizer.epsilon: must be above 0: weights whose gradients "
                                    "are 0 would become 0 / 0");
    return TS_OK;
}

/* What is said of it begins as the key ends. */
static ts_status check_topology(const char *word)
{
    ts_topology topology;
    if (strcmp(word, "auto") == 0) return TS_OK;
    ts_status status = ts_topology_load(word, &topology);
    if (status != TS_OK) tsi_error_rename("topology", "parallel.topology");
    return status;
}

static ts_status check_muon(const tsi_optimizer_keys *o)
{
    static const char *const adjusts[] = { "rms", "original", NULL };
    static const char *const products[] = { "f32", "bf16", NULL };
    TSI_TRY(check_word("optimizer.muon_adjust", o->muon_adjust, adjusts));
    TSI_TRY(check_word("optimizer.muon_dtype", o->muon_dtype, products));
    if (o->muon_momentum < 1) return TS_OK;
    return TSI_FAIL(
        TS_ERR_ARG,
        "optimizer.muon_momentum: is %g, must be below 1: directions would grow without "
        "end",
        o->muon_momentum);
}

ts_muon_options tsi_train_muon(const ts_train_config *c)
{
    const tsi_optimizer_keys *k = &c->optimizer;
    return (ts_muon_options){
        .struct_size = sizeof(ts_muon_options),
        .lr = k->rate,
        .momentum = k->muon_momentum,
        .weight_decay = k->weight_decay,
        .beta1 = k->beta1,
        .beta2 = k->beta2,
        .epsilon = k->epsilon,
        .exact = 1,
        .steps = (int32_t)k->muon_steps,
        .adjust = strcmp(k->muon_adjust, "rms") == 0 ? TS_MUON_ADJUST_RMS : TS_MUON_ADJUST_ORIGINAL,
        .dtype = strcmp(k->muon_dtype, "bf16") == 0 ? TS_DTYPE_BF16 : 0,
        .moments = strcmp(k->moments, "bf16") == 0 ? TS_DTYPE_BF16 : 0,
        .adamw = k->muon_adamw[0] ? "" : NULL, /* groups of the model say it (set_up.c) */
    };
}

ts_status tsi_train_config_meaning(const ts_train_config *c)
{
    static const char *const kinds[] = { "adamw", "sgd", "muon", NULL };
    static const char *const decays[] = { "cosine", "linear", "sqrt", "constant", NULL };
    static const char *const dtypes[] = { "f32", "f64", "bf16", NULL };
    static const char *const recomputes[] = { "none", "full", "select", NULL };
    static const char *const computes[] = { "", "f32", "f64", "bf16", "f16", NULL };
    if (!c) return TSI_FAIL(TS_ERR_NULL, "train: there is no configuration");
    TSI_TRY(check_word("model.family", c->model.family, tsi_family_names));
    TSI_TRY(check_word("model.dtype", c->model.dtype, dtypes));
    TSI_TRY(check_word("model.compute", c->model.compute, computes));
    if (!is_count(c->parallel.recompute))
        TSI_TRY(check_word("parallel.recompute", c->parallel.recompute, recomputes));
    static const char *const algorithms[] = { "auto", "ring", "gather", "heads", NULL };
    static const char *const packings[] = { "together", "separate", NULL };
    int32_t reshard;
    ts_balance balance;
    TSI_TRY(ts_reshard_parse(c->parallel.reshard, &reshard));
    static const char *const saves[] = { "gathered", "sharded", NULL };
    TSI_TRY(check_word("parallel.attention", c->parallel.attention, algorithms));
    TSI_TRY(check_word("parallel.saved", c->parallel.saved, saves));
    TSI_TRY(ts_balance_parse(c->parallel.balance, &balance));
    TSI_TRY(check_topology(c->parallel.topology));
    TSI_TRY(check_word("data.documents", c->data.documents, packings));
    if (strcmp(c->data.documents, "separate") == 0 && c->data.end < 0)
        return TSI_FAIL(TS_ERR_ARG, "data.end: separate documents need the token that ends one");
    static const char *const moments[] = { "f32", "bf16", NULL };
    static const char *const devices[] = { "auto", "cpu", "cuda", "queue", NULL };
    static const char *const reductions[] = { "auto", "ordered", "native", NULL };
    TSI_TRY(check_word("train.device", c->train.device, devices));
    TSI_TRY(check_word("comm.reduce", c->comm.reduce, reductions));
    TSI_TRY(check_word("optimizer.moments", c->optimizer.moments, moments));
    TSI_TRY(check_word("optimizer.kind", c->optimizer.kind, kinds));
    TSI_TRY(check_muon(&c->optimizer));
    TSI_TRY(check_word("optimizer.decay", c->optimizer.decay, decays));
    tsi_keep keep;
    TSI_TRY(tsi_keep_parse(c->checkpoint.keep, &keep));
    int64_t trace_first, trace_last, limit;
    TSI_TRY(tsi_limit_parse(c->train.memory, &limit));
    TSI_TRY(tsi_trace_parse(c->log.trace, &trace_first, &trace_last));
    TSI_TRY(check_numbers(c));
    return tsi_train_fits(c);
}

ts_status ts_train_config_check(const ts_train_config *c)
{
    TSI_TRY(tsi_train_config_meaning(c));
    if (c->data.path[0] == '\0')
        return TSI_FAIL(TS_ERR_ARG, "data.path: is empty; it names a text file or token files");
    if (c->train.output[0] == '\0') return TSI_FAIL(TS_ERR_ARG, "train.output: is empty");
    if (c->train.eval_every > 0 && c->data.held_out[0] == '\0')
        return TSI_FAIL(TS_ERR_ARG,
                        "train.eval_every: is %lld, and data.held_out names nothing to "
                        "evaluate on",
                        (long long)c->train.eval_every);
    if (c->train.patience > 0 && c->train.eval_every == 0)
        return TSI_FAIL(TS_ERR_ARG, "train.patience: needs evaluations; set train.eval_every");
    return TS_OK;
}

ts_rate_schedule tsi_train_schedule(const ts_train_config *c)
{
    static const char *const decays[] = { "cosine", "linear", "sqrt", "constant" };
    ts_rate_schedule schedule = { .struct_size = sizeof schedule,
                                  .steps = c->train.steps,
                                  .warmup = c->optimizer.warmup,
                                  .decay_share = c->optimizer.decay_share,
                                  .floor = c->optimizer.floor };
    for (int32_t i = 0; i < 4; i++)
        if (strcmp(c->optimizer.decay, decays[i]) == 0) schedule.decay = i;
    return schedule;
}

ts_status tsi_train_path(const ts_train_config *config, const char *name, char *out)
{
    int length = snprintf(out, TSI_CONFIG_TEXT_MAX, "%s/%s", config->train.output, name);
    if (length < TSI_CONFIG_TEXT_MAX) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "train.output: the path is too long");
}
