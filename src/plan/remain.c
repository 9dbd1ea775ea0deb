/* SPDX-License-Identifier: Apache-2.0 */
/* remain.c - see remain.h. Exact where every extent divides by the product of all axes, which
 * tsi_remain_make demands; digits of different primes at the same place (a cut by 2 against a cut
 * by 3) make it answer 0. */
#include "plan/remain.h"

#include <string.h>

static bool axis_digits(tsi_remain *r, int32_t axis, int32_t *count)
{
    int64_t rest = r->space->size[axis];
    r->first[axis] = *count;
    for (int64_t p = 2; rest > 1; p++) {
        if (p > 64) return false;
        for (; rest % p == 0; rest /= p) {
            if (*count == TSI_REMAIN_DIGITS) return false;
            r->prime[(*count)++] = (int32_t)p;
        }
    }
    return true;
}

/* The digits by which a state cuts each dim, in cutting order. */
static void state_digits(const tsi_remain *r, tsi_state state, int32_t count[TS_NDIM_MAX],
                         int32_t digit[TS_NDIM_MAX][TSI_REMAIN_DIGITS])
{
    const tsi_space *s = r->space;
    int32_t at[TS_NDIM_MAX][TS_NDIM_MAX], depth[TS_NDIM_MAX] = { 0 };
    for (int32_t k = 0; k < s->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (!tsi_code_cuts(code)) continue;
        int32_t d = code - TSI_CODE_S;
        at[d][tsi_state_position(state, k)] = k;
        depth[d]++;
    }
    for (int32_t d = 0; d < s->dims; d++) {
        count[d] = 0;
        for (int32_t i = 0; i < depth[d]; i++) {
            int32_t axis = at[d][i];
            for (int32_t v = r->first[axis]; v < r->first[axis + 1]; v++)
                digit[d][count[d]++] = v;
        }
    }
}

static bool regular(const tsi_space *space, tsi_state state)
{
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        if (code >= TSI_CODE_CUT && code < TSI_CODE_P) return false;
    }
    return true;
}

bool tsi_remain_make(const tsi_space *space, tsi_remain *out)
{
    memset(out, 0, sizeof *out);
    out->space = space;
    if (!regular(space, space->src) || !regular(space, space->dst)) return false;
    for (int32_t d = 0; d < space->dims; d++) {
        if (space->extent[d] % space->ranks != 0) return false;
    }
    int32_t count = 0;
    out->dst_held = out->kept_size = 1;
    for (int32_t k = 0; k < space->axes; k++) {
        if (!axis_digits(out, k, &count)) return false;
        int32_t to = tsi_state_code(space->dst, k);
        if (tsi_code_cuts(to))
            out->dst_cut |= 1u << k;
        else
            out->dst_held *= space->size[k];
        if (!tsi_code_partial(to)) continue;
        out->kept |= 1u << k;
        out->kept_size *= space->size[k];
    }
    out->first[space->axes] = count;
    state_digits(out, space->dst, out->dst_count, out->dst_digit);
    return true;
}

static int32_t root_of(int32_t *parent, int32_t i)
{
    while (parent[i] != i)
        i = parent[i] = parent[parent[i]];
    return i;
}

/* Elements that ranks hold in both the state and the target, all ranks together; -1: primes do not
 * match. */
static int64_t overlap(const tsi_remain *r, tsi_state state)
{
    const tsi_space *s = r->space;
    int32_t parent[TSI_REMAIN_DIGITS], count[TS_NDIM_MAX];
    int32_t digit[TS_NDIM_MAX][TSI_REMAIN_DIGITS];
    int32_t digits = r->first[s->axes];
    for (int32_t v = 0; v < digits; v++)
        parent[v] = v;
    state_digits(r, state, count, digit);
    int64_t block = s->count, ranks = 1;
    for (int32_t d = 0; d < s->dims; d++) {
        int32_t both = count[d] < r->dst_count[d] ? count[d] : r->dst_count[d];
        for (int32_t j = 0; j < both; j++) {
            int32_t a = digit[d][j], b = r->dst_digit[d][j];
            if (r->prime[a] != r->prime[b]) return -1;
            parent[root_of(parent, a)] = root_of(parent, b);
            block /= r->prime[a];
        }
        for (int32_t j = both; j < count[d]; j++)
            block /= r->prime[digit[d][j]];
        for (int32_t j = both; j < r->dst_count[d]; j++)
            block /= r->prime[r->dst_digit[d][j]];
    }
    for (int32_t v = 0; v < digits; v++) {
        if (parent[v] == v) ranks *= r->prime[v];
    }
    return ranks * block;
}

double tsi_remain_bytes(const tsi_remain *r, tsi_state state)
{
    const tsi_space *s = r->space;
    int64_t same = overlap(r, state), terms = 1, free = 1;
    if (same < 0) return 0;
    for (int32_t k = 0; k < s->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        bool kept = r->kept >> k & 1u;
        if (tsi_code_partial(code) && !kept) terms *= s->size[k];
        if (!kept && !tsi_code_cuts(code) && !(r->dst_cut >> k & 1u)) free *= s->size[k];
    }
    int64_t wanted = s->count * r->kept_size;
    int64_t elements = s->count * r->dst_held - same;
    if (terms > 1) elements = wanted * (terms + r->dst_held / r->kept_size - 1) - same / free;
    return (double)(elements * s->item);
}
