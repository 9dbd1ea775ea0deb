/* SPDX-License-Identifier: Apache-2.0 */
/* rows_bf16.h - loops over rows of bf16, widened and rounded in registers; a part of rows_body.h.
 */

static TSI_INLINE void pack1_bf16(const tsi_row *row, pack_one f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0];
    float c = (float)number_of(row);
    int64_t i = 0;
    for (; i + PACK <= row->count; i += PACK)
        store_bf16(to + i, f(load_bf16(x + i), c));
    int64_t rest = row->count - i;
    if (rest > 0) store_part_bf16(to + i, f(part_bf16(x + i, rest), c), rest);
}

/* One number, widened, where an input does not move. */
static TSI_INLINE vp pack_single(const uint16_t *x)
{
    return vp_set(tsi_f32_of_bf16(*x));
}

/* Both inputs move, or one of them: a loop for each. */
static TSI_INLINE void pack2_bf16(const tsi_row *row, pack_two f)
{
    if (row->count == 0) return;
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0], *y = row->in[1];
    float c = (float)number_of(row);
    int64_t i = 0, whole = row->count / PACK * PACK, rest = row->count - whole;
    int32_t moves_x = row->step[0], moves_y = row->step[1];
    vp a = pack_single(x), b = pack_single(y);
    if (moves_x && moves_y) {
        for (; i + 2 * PACK <= whole;
             i += 2 * PACK) { /* two at once: conversions are slow to end */
            vp left = f(load_bf16(x + i), load_bf16(y + i), c);
            vp right = f(load_bf16(x + i + PACK), load_bf16(y + i + PACK), c);
            store_bf16(to + i, left);
            store_bf16(to + i + PACK, right);
        }
        for (; i < whole; i += PACK)
            store_bf16(to + i, f(load_bf16(x + i), load_bf16(y + i), c));
    } else if (moves_x) {
        for (; i < whole; i += PACK)
            store_bf16(to + i, f(load_bf16(x + i), b, c));
    } else {
        for (; i < whole; i += PACK)
            store_bf16(to + i, f(a, moves_y ? load_bf16(y + i) : b, c));
    }
    if (rest == 0) return;
    if (moves_x) a = part_bf16(x + i, rest);
    if (moves_y) b = part_bf16(y + i, rest);
    store_part_bf16(to + i, f(a, b, c), rest);
}

static TSI_INLINE void map1_bf16(const tsi_row *row, f32_one f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0];
    float c = (float)number_of(row);
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = tsi_bf16_of_f32(f(tsi_f32_of_bf16(x[i]), c));
}

static TSI_INLINE void map2_bf16(const tsi_row *row, f32_two f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0], *y = row->in[1];
    int64_t sx = row->step[0], sy = row->step[1];
    float c = (float)number_of(row);
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = tsi_bf16_of_f32(f(tsi_f32_of_bf16(x[i * sx]), tsi_f32_of_bf16(y[i * sy]), c));
}

static TSI_INLINE void map3_bf16(const tsi_row *row, f32_three f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0], *y = row->in[1], *z = row->in[2];
    int64_t sx = row->step[0], sy = row->step[1], sz = row->step[2];
    float c = (float)number_of(row);
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = tsi_bf16_of_f32(f(tsi_f32_of_bf16(x[i * sx]), tsi_f32_of_bf16(y[i * sy]),
                                  tsi_f32_of_bf16(z[i * sz]), c));
}

static void widen_row(float *to, const uint16_t *x, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        fetch(x + i);
        store_f32(to + i, load_bf16(x + i));
    }
    for (; i < count; i++)
        to[i] = tsi_f32_of_bf16(x[i]);
}

static void narrow_row(uint16_t *to, const float *x, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        fetch(x + i);
        store_bf16(to + i, load_f32(x + i));
    }
    for (; i < count; i++)
        to[i] = tsi_bf16_of_f32(x[i]);
}

#define TSI_ROWS_BF16 .widen = widen_row, .narrow = narrow_row
