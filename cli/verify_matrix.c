/* SPDX-License-Identifier: Apache-2.0 */
/* verify_matrix.c - `tessera verify parallel`: every pair of ways to train on several ranks, and
 * some triples and quadruples, each for a dense family, one with tied weights and one with experts.
 *
 * Roles become a mesh, a plan and groups of experts by one rule (case_of): axes of 2; sequence
 * parallelism is the plan of an axis tp, so tp with it is an axis of 4; experts need an axis fsdp,
 * of 4 where fsdp is a role beside them, so that both cut. What means nothing (experts of a model
 * without any) is run too, and has to be refused. */
#include <stdlib.h>
#include <string.h>

#include "verify.h"
#include "verify_parallel.h"

typedef enum role {
    ROLE_REPLICATE,
    ROLE_FSDP,
    ROLE_TP,
    ROLE_SP,
    ROLE_CP,
    ROLE_PP,
    ROLE_EP,
    ROLE_COUNT
} role;
static const char *const role_names[ROLE_COUNT] = { "replicate", "fsdp", "tp", "sp",
                                                    "cp",        "pp",   "ep" };
#define R(name) (1u << ROLE_##name)

static const uint32_t larger[] = {
    R(REPLICATE) | R(FSDP) | R(SP),
    R(REPLICATE) | R(FSDP) | R(CP),
    R(REPLICATE) | R(FSDP) | R(EP),
    R(FSDP) | R(CP) | R(SP),
    R(FSDP) | R(SP) | R(EP),
    R(FSDP) | R(CP) | R(EP),
    R(PP) | R(FSDP) | R(SP),
    R(PP) | R(FSDP) | R(EP),
    R(PP) | R(REPLICATE) | R(FSDP) | R(TP),
    R(PP) | R(FSDP) | R(CP) | R(SP),
    R(REPLICATE) | R(FSDP) | R(CP) | R(SP),
    R(PP) | R(FSDP) | R(SP) | R(EP),
};
enum {
    PAIRS = ROLE_COUNT * (ROLE_COUNT - 1) / 2,
    CASES = PAIRS + sizeof larger / sizeof larger[0],
    FAMILIES_MAX = 16
};

typedef struct matrix {
    verify_case cases[CASES];
    uint32_t roles[CASES];
    verify_family family[FAMILIES_MAX];
    int64_t family_count;
    bool wanted[FAMILIES_MAX][CASES];
    verify_cell cell[FAMILIES_MAX][CASES];
} matrix;

/* ---- rows ------------------------------------------------------------------------------------ */

static void append(char *out, size_t size, const char *text)
{
    size_t length = strlen(out);
    snprintf(out + length, size - length, "%s%s", length > 0 ? ", " : "", text);
}

static void append_axis(verify_case *c, const char *name, int64_t size)
{
    char axis[32];
    snprintf(axis, sizeof axis, "%s=%lld", name, (long long)size);
    append(c->mesh, sizeof c->mesh, axis);
}

static verify_case case_of(uint32_t roles)
{
    verify_case c = { .plan = "dp", .ep = 1 };
    bool tensor = roles & R(TP), sequence = roles & R(SP), experts = roles & R(EP);
    for (int i = 0; i < ROLE_COUNT; i++)
        if (roles >> i & 1) append(c.roles, sizeof c.roles, role_names[i]);
    if (roles & R(PP)) append_axis(&c, "pp", 2);
    if (roles & R(REPLICATE)) append_axis(&c, "replicate", 2);
    if (roles & R(FSDP)) append_axis(&c, "fsdp", experts ? 4 : 2);
    if (experts && !(roles & R(FSDP))) append_axis(&c, "fsdp", 2);
    if (roles & R(CP)) append_axis(&c, "cp", 2);
    if (tensor || sequence) {
        append_axis(&c, "tp", tensor && sequence ? 4 : 2);
        c.plan = sequence ? "sp" : "tp";
    }
    /* Groups are neighbours: of 4 they reach over tp into fsdp. */
    if (experts) c.ep = (roles & R(FSDP)) && sequence ? 4 : 2;
    return c;
}

static void fill_cases(matrix *m)
{
    int64_t n = 0;
    for (int a = 0; a < ROLE_COUNT; a++)
        for (int b = a + 1; b < ROLE_COUNT; b++)
            m->roles[n++] = 1u << a | 1u << b;
    for (size_t i = 0; i < sizeof larger / sizeof larger[0]; i++)
        m->roles[n++] = larger[i];
    for (int64_t i = 0; i < n; i++)
        m->cases[i] = case_of(m->roles[i]);
}

/* ---- families -------------------------------------------------------------------------------- */

static void fill_families(matrix *m)
{
    ts_model_config c = TS_INIT(ts_model_config);
    c.vocab = 61;
    c.hidden = 16;
    c.intermediate = 28;
    c.layers = 3;
    c.heads = 4;
    c.kv_heads = 2;
    c.head_dim = 4;
    c.positions = 32;
    c.init_deviation = 0.2; /* far from even: choices of experts and attention differ by token */
    m->family_count = 3;
    m->family[0] = (verify_family){ .name = "dense", .config = c };
    m->family[1] = (verify_family){ .name = "tied", .config = c };
    m->family[1].config.family = TS_MODEL_GPT2;
    m->family[1].config.kv_heads = c.heads;
    m->family[1].config.tied = 1;
    m->family[2] = (verify_family){ .name = "experts", .config = c };
    m->family[2].config.family = TS_MODEL_QWEN3_MOE;
    m->family[2].config.experts = 6;
    m->family[2].config.experts_per_token = 2;
    m->family[2].config.expert_width = 12;
    m->family[2].config.route_sum = 1;
}

/* The last part of the path. */
static void name_family(verify_family *f)
{
    size_t end = strlen(f->directory);
    while (end > 1 && f->directory[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && f->directory[begin - 1] != '/')
        begin--;
    snprintf(f->name, sizeof f->name, "%.*s", (int)(end - begin), f->directory + begin);
}

/* -1: good; else the exit code. */
static int open_families(matrix *m, const cli_list *models, int argc, char **argv)
{
    if (models->count == 0 && argc == 1) {
        fill_families(m);
        return -1;
    }
    for (size_t i = 0; i < models->count + (size_t)(argc - 1); i++) {
        const char *directory = i < models->count ? models->item[i] : argv[i - models->count + 1];
        if (m->family_count == FAMILIES_MAX)
            return cli_fail_usage("verify parallel", "more than %d models", FAMILIES_MAX);
        verify_family *f = &m->family[m->family_count++];
        *f = (verify_family){ .directory = directory, .config = TS_INIT(ts_model_config) };
        name_family(f);
        if (ts_model_config_read(directory, &f->config) != TS_OK)
            return cli_fail_usage("verify parallel", "%s", ts_last_error());
    }
    return -1;
}

/* ---- what is run ----------------------------------------------------------------------------- */

static bool means_nothing(const matrix *m, int64_t f, int64_t i)
{
    return m->cases[i].ep > 1 && m->family[f].config.experts <= 0;
}

/* Roles of a text "fsdp, tp"; false: a word is none. */
static bool roles_of(const char *text, uint32_t *out)
{
    for (*out = 0; *text;) {
        size_t length = strcspn(text, ", ");
        bool found = false;
        for (int i = 0; i < ROLE_COUNT; i++)
            if (strlen(role_names[i]) == length && strncmp(role_names[i], text, length) == 0) {
                *out |= 1u << i;
                found = true;
            }
        if (!found) return false;
        text += length;
        text += strspn(text, ", ");
    }
    return true;
}

/* `sample` cells by the seed (0: all), of rows that have all of `roles`. */
static void choose(matrix *m, uint32_t roles, int64_t sample, uint64_t seed)
{
    int64_t left = 0;
    for (int64_t f = 0; f < m->family_count; f++)
        for (int64_t i = 0; i < CASES; i++)
            left += (m->roles[i] & roles) == roles;
    if (sample == 0 || sample > left) sample = left;
    for (int64_t i = 0; i < CASES; i++)
        for (int64_t f = 0; f < m->family_count; f++) {
            if ((m->roles[i] & roles) != roles) continue;
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            bool taken = (int64_t)((seed >> 33) % (uint64_t)left) < sample;
            m->wanted[f][i] = taken;
            sample -= taken;
            left--;
        }
}

/* ---- printing -------------------------------------------------------------------------------- */

/* Did it do what it has to? */
static bool is_good(const matrix *m, int64_t f, int64_t i)
{
    const verify_cell *c = &m->cell[f][i];
    return means_nothing(m, f, i) ? c->refused : c->agrees;
}

static void put_cell(cli_table *table, size_t column, const matrix *m, int64_t f, int64_t i)
{
    const verify_cell *c = &m->cell[f][i];
    char bytes[32];
    if (!c->ran) {
        cli_table_cell(table, column, " ");
    } else if (means_nothing(m, f, i)) {
        cli_table_cell(table, column, c->refused ? "-" : "NOT REFUSED");
    } else if (c->refused) {
        cli_table_cell(table, column, "REFUSED");
    } else {
        cli_table_cell(table, column, c->agrees ? "%.1e" : "DIFFERS %.1e", c->difference);
        cli_table_cell(table, column + 1, "%s", cli_bytes(bytes, sizeof bytes, c->bytes));
    }
}

/* "fsdp=2, tp=2 (sp, ep 2)" */
static void put_case(cli_table *table, const verify_case *c)
{
    char how[32] = "", experts[24];
    int64_t ranks = 0;
    if (strcmp(c->plan, "sp") == 0) append(how, sizeof how, "sp");
    snprintf(experts, sizeof experts, "ep %lld", (long long)c->ep);
    if (c->ep > 1) append(how, sizeof how, experts);
    if (cli_mesh_ranks(c->mesh, &ranks) != TS_OK) ranks = 0;
    cli_table_row(table);
    cli_table_cell(table, 0, "%s", c->roles);
    cli_table_cell(table, 1, how[0] ? "%s (%s)" : "%s", c->mesh, how);
    cli_table_cell(table, 2, "%lld", (long long)ranks);
}

/* Three families beside each other; more go below. */
static void print_families(const matrix *m, int64_t first, int64_t last)
{
    char name[CLI_COLUMNS_MAX][CLI_CELL_MAX] = { "roles", "mesh", "ranks" };
    const char *names[CLI_COLUMNS_MAX + 1] = { name[0], name[1], ">ranks" };
    cli_table table;
    size_t columns = 3;
    for (int64_t f = first; f < last; f++, columns += 2) {
        snprintf(name[columns], CLI_CELL_MAX, ">%s", m->family[f].name);
        names[columns] = name[columns];
        names[columns + 1] = ">bytes";
    }
    cli_table_begin(&table, names);
    for (int64_t i = 0; i < CASES; i++) {
        bool any = false;
        for (int64_t f = first; f < last; f++)
            any = any || m->cell[f][i].ran;
        if (!any) continue;
        put_case(&table, &m->cases[i]);
        for (int64_t f = first; f < last; f++)
            put_cell(&table, 3 + 2 * (size_t)(f - first), m, f, i);
    }
    cli_table_print(&table, stdout);
    cli_table_release(&table);
}

static int print_text(const matrix *m, double seconds, uint64_t seed)
{
    enum { BESIDE = 3 };
    int64_t good = 0, all = 0, refused = 0;
    for (int64_t f = 0; f < m->family_count; f += BESIDE)
        print_families(m, f, f + BESIDE < m->family_count ? f + BESIDE : m->family_count);
    for (int64_t f = 0; f < m->family_count; f++)
        for (int64_t i = 0; i < CASES; i++) {
            if (!m->cell[f][i].ran) continue;
            bool nothing = means_nothing(m, f, i);
            refused += nothing && m->cell[f][i].refused;
            all += !nothing;
            good += !nothing && is_good(m, f, i);
            if (!is_good(m, f, i))
                printf("%s, %s: %s\n", m->cases[i].roles, m->family[f].name, m->cell[f][i].reason);
        }
    printf(
        "seed %llu: %lld of %lld agree with one rank, %lld mean nothing and are refused (experts "
        "of a model without any), %.0f s\n",
        (unsigned long long)seed, (long long)good, (long long)all, (long long)refused, seconds);
    return 0;
}

static void put_json(const matrix *m, int64_t f, int64_t i, ts_json_writer *json)
{
    const verify_case *c = &m->cases[i];
    const verify_cell *cell = &m->cell[f][i];
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "roles", c->roles);
    ts_json_put_member_text(json, "mesh", c->mesh);
    ts_json_put_member_text(json, "plan", c->plan);
    ts_json_put_member_int(json, "ep", c->ep);
    ts_json_put_member_text(json, "family", m->family[f].name);
    ts_json_put_member_bool(json, "agrees", cell->agrees);
    ts_json_put_member_bool(json, "refused", cell->refused);
    ts_json_put_member_bool(json, "means_nothing", means_nothing(m, f, i));
    if (!cell->refused) {
        ts_json_put_member_real(json, "difference", cell->difference);
        ts_json_put_member_int(json, "bytes", cell->bytes);
    }
    if (cell->reason[0]) ts_json_put_member_text(json, "reason", cell->reason);
    ts_json_put_close(json, '}');
}

static int print_json(const matrix *m, double seconds, uint64_t seed)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    ts_json_put_member_int(&json, "seed", (int64_t)seed);
    ts_json_put_member_real(&json, "seconds", seconds);
    ts_json_put_key(&json, "results");
    ts_json_put_open(&json, '[');
    for (int64_t i = 0; i < CASES; i++)
        for (int64_t f = 0; f < m->family_count; f++)
            if (m->cell[f][i].ran) put_json(m, f, i, &json);
    ts_json_put_close(&json, ']');
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static int run(matrix *m, const verify_run *how, bool json)
{
    double begin = cli_now();
    for (int64_t f = 0; f < m->family_count; f++)
        if (!verify_family_run(how, &m->family[f], m->cases, m->wanted[f], CASES, m->cell[f]))
            return 1;
    double seconds = cli_now() - begin;
    int code = json ? print_json(m, seconds, how->seed) : print_text(m, seconds, how->seed);
    for (int64_t f = 0; f < m->family_count; f++)
        for (int64_t i = 0; i < CASES; i++)
            if (m->cell[f][i].ran && !is_good(m, f, i)) code = 1;
    return code;
}

int cli_verify_parallel(int argc, char **argv)
{
    verify_run how = { 0 };
    cli_list models = { 0 };
    bool json = false;
    int64_t sample = 0, seed = 1;
    const char *only = "";
    const cli_option options[] = {
        CLI_LIST("models", &models, "DIR", "instead of the built-in families; several may follow"),
        CLI_TEXT("device", &how.device, "NAME",
                 "cpu, cuda, queue or auto (default TESSERA_DEVICE, else cpu)"),
        CLI_TOPOLOGY(&how.topology),
        CLI_TEXT("only", &only, "ROLES", "rows that have all of these: \"fsdp, tp\""),
        CLI_INT("sample", &sample, 1, 1 << 20, "so many cells, chosen by the seed (default all)"),
        CLI_INT("seed", &seed, 0, INT64_MAX, "of weights, tokens and the sample (default 1)"),
        CLI_FLAG("json", &json, "one JSON object"),
        CLI_END,
    };
    const cli_usage usage = {
        "verify parallel", "[options]",
        "Trains on every pair of replicate, fsdp, tp, sp, cp, pp and ep, and on some triples and "
        "quadruples,\nand compares losses, gradients and weights with one rank.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    code = cli_check_topology("verify parallel", how.topology);
    if (code >= 0) return code;
    uint32_t roles;
    if (!roles_of(only, &roles))
        return cli_fail_usage("verify parallel",
                              "--only: roles are replicate, fsdp, tp, sp, cp, pp, ep; found \"%s\"",
                              only);
    code = verify_device("verify parallel", how.device);
    if (code >= 0) return code;
    matrix *m = calloc(1, sizeof *m);
    if (m == NULL) return cli_fail("verify parallel", "out of memory");
    how.seed = (uint64_t)seed;
    fill_cases(m);
    code = open_families(m, &models, argc, argv);
    if (code < 0) {
        choose(m, roles, sample, how.seed);
        code = run(m, &how, json);
    }
    free(m);
    return code;
}
