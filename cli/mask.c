/* SPDX-License-Identifier: Apache-2.0 */
/* mask.c - `tessera mask`: who sees whom in attention, which tiles are computed, who holds what. */
#include "mask.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layout.h"

typedef struct command {
    const char *svg, *html, *batch, *balance;
    int64_t length, keys, block, row, head, ranks, align;
    bool json;
} command;

static const char more[] =
    "A mask is \"causal\", \"window(l, r)\", \"prefix(n)\", \"documents(3, 5; 8)\" (lengths; rows "
    "by ';'),\n"
    "joined by & and |; \"+ softcap(c)\" and \"+ alibi\" change scores. A batch has one JSON "
    "object "
    "a line:\n"
    "{\"kind\": \"head_tail\", \"seq\": 8, \"world\": 2}, {\"kind\": \"per_document\", \"docs\": "
    "[[8, 8]], \"world\": 2}.\n"
    "\n"
    "  tessera mask \"causal & documents(300, 500, 224)\" --length 1024 --ranks 4\n";

/* Whose queries the rows of tiles are: of the first of each. */
static bool take_owners(mask_picture *p)
{
    p->owner = calloc((size_t)p->rows + 1, sizeof *p->owner);
    for (int64_t i = 0, k = 0; p->owner != NULL && i < p->rows; i++) {
        while (k + 1 < p->cut.pieces && p->cut.piece[k].end <= i * p->size.query_block)
            k++;
        p->owner[i] = p->cut.pieces > 0 ? (int32_t)p->cut.piece[k].owner : 0;
    }
    return p->owner != NULL;
}

static int print_json(const mask_picture *p)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    ts_json_put_member_text(&json, "mask", p->text);
    ts_json_put_member_int(&json, "queries", p->size.queries);
    ts_json_put_member_int(&json, "keys", p->size.keys);
    ts_json_put_member_int(&json, "block", p->size.query_block);
    ts_json_put_member_int(&json, "full", p->summary.full);
    ts_json_put_member_int(&json, "partial", p->summary.partial);
    ts_json_put_member_int(&json, "empty", p->summary.empty);
    ts_json_put_member_int(&json, "pairs", p->summary.pairs);
    ts_json_put_member_real(&json, "skipped", mask_skipped(p));
    if (p->owner != NULL) {
        size_t need = ts_cut_text(&p->cut, 0, NULL, 0) + 1;
        char *text = malloc(need);
        if (text != NULL) (void)ts_cut_text(&p->cut, 0, text, need);
        ts_json_put_member_text(&json, "cut", text);
        ts_json_put_member_int(&json, "work_max", p->cut.work_max);
        ts_json_put_member_real(&json, "work_mean", p->cut.work_mean);
        ts_json_put_member_int(&json, "bound", p->cut.bound);
        free(text);
    }
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static int show(const command *self, mask_picture *p)
{
    int code = 0;
    const char *plain = getenv("NO_COLOR");
    bool colour = isatty(STDOUT_FILENO) == 1 && (plain == NULL || plain[0] == '\0');
    if (self->svg != NULL) code |= mask_write_svg(p, self->svg);
    if (self->html != NULL) code |= mask_write_html(p, self->html);
    if (self->json) code |= print_json(p);
    if (self->svg == NULL && self->html == NULL && !self->json) mask_print(p, colour, stdout);
    return code;
}

static int cut(const command *self, mask_picture *p)
{
    ts_balance balance;
    ts_cut_options options = TS_INIT(ts_cut_options);
    if (self->ranks == 0) return 0;
    if (p->size.keys != p->size.queries)
        return cli_fail_usage("mask", "--ranks cuts a sequence: queries and keys are the same");
    if (ts_balance_parse(self->balance, &balance) != TS_OK)
        return cli_fail_usage("mask", "--balance: %s", ts_last_error());
    options.length = p->size.queries;
    options.align = self->align;
    options.ranks = self->ranks;
    options.balance = (int32_t)balance;
    if (ts_cut_for(p->mask, &options, &p->cut) != TS_OK || !take_owners(p))
        return cli_fail_usage("mask", "%s", ts_last_error());
    return 0;
}

static int run_one(const command *self, const char *text, ts_world *world)
{
    mask_picture p = { .size = TS_INIT(ts_mask_size), .summary = TS_INIT(ts_mask_summary) };
    p.mask = ts_mask_get(world, text);
    if (p.mask == NULL) return cli_fail_usage("mask", "%s", ts_last_error());
    p.size.queries = self->length;
    p.size.keys = self->keys > 0 ? self->keys : self->length;
    p.size.query_block = p.size.key_block = self->block;
    p.size.row = self->row;
    p.size.head = self->head;
    p.rows = (p.size.queries + self->block - 1) / self->block;
    p.columns = (p.size.keys + self->block - 1) / self->block;
    size_t length = ts_mask_text(p.mask, NULL, 0) + 1;
    p.text = malloc(length);
    p.tile = malloc((size_t)(p.rows * p.columns) + 1);
    int code = 0;
    if (p.text == NULL || p.tile == NULL)
        code = cli_fail("mask", "out of memory");
    else
        (void)ts_mask_text(p.mask, p.text, length);
    if (code == 0 &&
        ts_mask_tiles(p.mask, &p.size, p.tile, p.rows * p.columns, &p.summary) != TS_OK)
        code = cli_fail_usage("mask", "%s", ts_last_error());
    if (code == 0) code = cut(self, &p);
    if (code == 0) code = show(self, &p);
    ts_cut_release(&p.cut);
    free(p.owner);
    free(p.tile);
    free(p.text);
    return code;
}

int cli_mask(int argc, char **argv)
{
    command self = { .block = 128, .align = 128, .balance = "auto" };
    const int64_t most = (int64_t)1 << 24;
    const cli_option options[] = {
        CLI_INT("length", &self.length, 1, most, "queries, and keys where --keys is not given"),
        CLI_INT("keys", &self.keys, 1, most, "keys"),
        CLI_INT("block", &self.block, 64, 1 << 20, "positions of a tile, a multiple of 64 (128)"),
        CLI_INT("row", &self.row, 0, most, "row of the batch to show (0)"),
        CLI_INT("head", &self.head, 0, most, "head to show (0)"),
        CLI_INT("ranks", &self.ranks, 1, 1 << 20, "cut the sequence among so many"),
        CLI_TEXT("balance", &self.balance, "NAME",
                 "auto, none, head_tail, per_document, ptrr (auto)"),
        CLI_INT("align", &self.align, 1, most, "positions of a block of a cut (128)"),
        CLI_TEXT("svg", &self.svg, "FILE", "a drawing"),
        CLI_TEXT("html", &self.html, "FILE", "a page that stands alone"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_TEXT("batch", &self.batch, "FILE", "one request a line; - is standard input"),
        CLI_END
    };
    const cli_usage usage = { "mask", "MASK --length N | --batch FILE",
                              "Shows which tiles of attention are computed under a mask.", options,
                              more };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (self.batch == NULL && (argc != 2 || self.length == 0))
        return cli_fail_usage("mask", "a mask and --length are needed, or --batch; see tessera "
                                      "mask --help");
    ts_world *world = layout_world("mask");
    if (world == NULL) return 1;
    code = self.batch != NULL ? cli_batch("mask", self.batch, mask_serve, world)
                              : run_one(&self, argv[1], world);
    ts_world_close(world);
    return code;
}
