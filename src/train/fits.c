/* SPDX-License-Identifier: Apache-2.0 */
/* fits.c - sizes of a configuration that have to agree, checked before anything is made.
 *
 * Little has to: heads, vocabulary, rows and tokens may be cut unevenly, and ranks may have none of
 * them (INV-3). What is left are relations between numbers that mean nothing otherwise. Each is
 * refused with both numbers and the nearest that would do. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "model/model_plan.h"
#include "plan/schedule.h"
#include "train/config.h"
#include "train/stages.h"

/* The divisors of n next to k, below and above: "2 or 4". */
static const char *divisors_near(int64_t n, int64_t k, char *out, size_t size)
{
    int64_t below = k < n ? k : n, above = k;
    while (below > 1 && n % below != 0)
        below--;
    while (above < n && n % above != 0)
        above++;
    if (above > n || n % above != 0 || above == below)
        snprintf(out, size, "%lld", (long long)below);
    else
        snprintf(out, size, "%lld or %lld", (long long)below, (long long)above);
    return out;
}

static ts_status check_batch(const ts_train_config *c)
{
    char near[48];
    if (c->train.batch % c->train.accumulate == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "train.batch: %lld rows cannot be run in %lld equal parts; train.accumulate "
                    "could be %s",
                    (long long)c->train.batch, (long long)c->train.accumulate,
                    divisors_near(c->train.batch, c->train.accumulate, near, sizeof near));
}

static ts_status check_heads(const tsi_model_keys *m)
{
    char near[48];
    int64_t kv = m->kv_heads ? m->kv_heads : m->heads;
    if (m->heads % kv != 0)
        return TSI_FAIL(
            TS_ERR_ARG, "model.kv_heads: %lld heads are no multiple of %lld; it could be %s",
            (long long)m->heads, (long long)kv, divisors_near(m->heads, kv, near, sizeof near));
    bool rotates = strcmp(m->family, "gpt2") != 0 && m->kv_rank == 0;
    if (m->head_dim && rotates && m->head_dim % 2 != 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "model.head_dim: %lld elements cannot be rotated in pairs; it could be "
                        "%lld or %lld",
                        (long long)m->head_dim, (long long)m->head_dim - 1,
                        (long long)m->head_dim + 1);
    if (m->head_dim) return TS_OK;
    if (m->hidden % m->heads != 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "model.heads: a width of %lld cannot be cut into %lld heads; it could be "
                        "%s, or model.head_dim says their size",
                        (long long)m->hidden, (long long)m->heads,
                        divisors_near(m->hidden, m->heads, near, sizeof near));
    if (rotates && m->hidden / m->heads % 2 != 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "model.heads: %lld heads of %lld have %lld elements each, which cannot be "
                        "rotated in pairs; model.head_dim could be %lld",
                        (long long)m->heads, (long long)m->hidden,
                        (long long)(m->hidden / m->heads), (long long)(m->hidden / m->heads + 1));
    return TS_OK;
}

static bool has_experts(const char *family)
{
    return strcmp(family, "mixtral") == 0 || strcmp(family, "qwen3_moe") == 0 ||
           strcmp(family, "deepseek_v3") == 0;
}

static ts_status check_experts(const tsi_model_keys *m)
{
    if (!has_experts(m->family)) return TS_OK;
    if (m->experts < 1)
        return TSI_FAIL(TS_ERR_ARG, "model.experts: the family %s has experts; 8, say", m->family);
    if (m->experts_per_token < 1 || m->experts_per_token > m->experts)
        return TSI_FAIL(TS_ERR_ARG,
                        "model.experts_per_token: %lld of %lld experts cannot be chosen; it could "
                        "be 1 to %lld",
                        (long long)m->experts_per_token, (long long)m->experts,
                        (long long)m->experts);
    return TS_OK;
}

static ts_status read_roles(const ts_train_config *c, ts_roles *out)
{
    ts_status status = ts_roles_parse(c->parallel.mesh, out);
    if (status != TS_OK) tsi_error_prefix("parallel.mesh");
    return status;
}

static ts_status check_ep(const ts_train_config *c)
{
    char near[48];
    ts_roles roles;
    if (c->parallel.ep <= 1) return TS_OK;
    TSI_TRY(read_roles(c, &roles));
    int64_t stages = roles.size[TS_ROLE_PIPELINE] > 0 ? roles.size[TS_ROLE_PIPELINE] : 1;
    int64_t ranks = roles.ranks / stages;
    if (roles.ranks == 0 || (c->parallel.ep <= ranks && ranks % c->parallel.ep == 0)) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "parallel.ep: groups of %lld do not divide the %lld ranks of %s \"%s\"; it "
                    "could be %s",
                    (long long)c->parallel.ep, (long long)ranks,
                    stages > 1 ? "a stage of" : "the mesh", c->parallel.mesh,
                    divisors_near(ranks, c->parallel.ep, near, sizeof near));
}

/* Who has no experts has nothing to cut. */
static ts_status check_cut_experts(const ts_train_config *c)
{
    bool has = has_experts(c->model.family);
    const char *what = c->model.family, *kind = "the family ";
    if (c->parallel.ep <= 1) return TS_OK;
    if (c->model.directory[0]) {
        ts_model_config read = TS_INIT(ts_model_config);
        TSI_TRY(ts_model_config_read(c->model.directory, &read));
        has = read.experts > 0;
        what = c->model.directory;
        kind = "the model of ";
    }
    if (has) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "parallel.ep: is %lld, and %s%s has no experts to cut; it could be 1",
                    (long long)c->parallel.ep, kind, what);
}

/* A stage has at least one block: the embedding, a layer, or the norm with the head. */
static ts_status check_stages(const ts_train_config *c)
{
    ts_roles roles;
    ts_schedule *schedule = NULL;
    tsi_stages_text said;
    TSI_TRY(tsi_schedule_check(c->parallel.schedule));
    TSI_TRY(tsi_stages_parse(c->parallel.stages, &said));
    if (!strstr(c->parallel.mesh, "pp")) return TS_OK; /* whoever makes the mesh reads the rest */
    TSI_TRY(read_roles(c, &roles));
    int64_t places = roles.size[TS_ROLE_PIPELINE], blocks = c->model.layers + 2;
    /* Searching takes time, and what it finds has as many stages as ranks are said to have. */
    if (places == 0 || strcasecmp(c->parallel.schedule, "search") == 0) return TS_OK;
    TSI_TRY(tsi_stages_schedule(c, places, &schedule));
    int64_t stages = ts_schedule_stages(schedule), of_rank = stages / places;
    ts_schedule_destroy(schedule);
    if (c->model.directory[0] || stages <= blocks) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "parallel.mesh: %lld blocks cannot be cut into %lld stages (pp=%lld, %lld of a "
                    "rank); pp could be %lld, or model.layers %lld",
                    (long long)blocks, (long long)stages, (long long)places, (long long)of_rank,
                    (long long)(blocks / of_rank > 1 ? blocks / of_rank : 1),
                    (long long)(stages - 2));
}

static ts_status check_plan(const ts_train_config *c)
{
    return c->parallel.plan[0] ? tsi_model_plan_check(TS_MODEL_LLAMA, c->parallel.plan) : TS_OK;
}

ts_status tsi_train_fits(const ts_train_config *c)
{
    TSI_TRY(check_plan(c));
    TSI_TRY(check_batch(c));
    TSI_TRY(check_ep(c));
    TSI_TRY(check_cut_experts(c));
    TSI_TRY(check_stages(c));
    if (c->model.directory[0]) return TS_OK; /* its files say */
    TSI_TRY(check_heads(&c->model));
    TSI_TRY(check_experts(&c->model));
    if (c->model.positions > 0 && c->model.positions < c->data.context)
        return TSI_FAIL(TS_ERR_ARG,
                        "data.context: is %lld, model.positions %lld; it could be %lld, or "
                        "model.positions 0: as long as the rows",
                        (long long)c->data.context, (long long)c->model.positions,
                        (long long)c->model.positions);
    return TS_OK;
}
