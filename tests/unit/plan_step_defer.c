/* SPDX-License-Identifier: Apache-2.0 */
/* plan_step_defer.c - sums of two rounds let the rows of the next layer pass: times by hand, the
 * order of begins alike on all ranks, and what is left as it stands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "plan/program.h"

#define HEAD "step 1\nranks 2\nqueue sums\nqueue rows\ngroup w 0,1 fsdp\ngroup t 0,1 tp\n"
#define VALUES                                                                                     \
    "takes h 64 activation\nvalue g 64 gradient\nvalue round.1 0 comm\nvalue round.2 0 comm\n"     \
    "value moved 64 gradient\nvalue all 64 activation\nvalue k 8 activation\n"                     \
    "value z 8 activation\nvalue y 8 activation\n"
#define SUM                                                                                        \
    "operator grad makes=g us=10\n"                                                                \
    "exchange small over=w queue=sums bytes=8 reads=g makes=round.1 us=30\n"                       \
    "wait reads=round.1\n"                                                                         \
    "operator redistribute reads=round.1 makes=round.2 us=0\n"                                     \
    "exchange large over=w queue=sums bytes=64 reads=g,round.2 makes=moved us=40\n"
#define ROWS "exchange rows over=t queue=rows bytes=64 reads=h makes=all us=20\n"
#define FREE "operator free reads=h makes=k us=25\n"
#define NEXT(us)                                                                                   \
    "wait reads=all\noperator next reads=all,k makes=z us=" us "\n"                                \
    "operator last reads=z makes=y us=50\n"
#define END                                                                                        \
    "wait reads=moved\nupdate weight reads=moved us=5\n"                                           \
    "release frees=h,g,round.1,round.2,moved,all,k,z,y\n"

typedef struct heard {
    ts_reorder_report is;
    int64_t count;
} heard;

static void hear(const ts_reorder_report *report, void *context)
{
    heard *h = context;
    h->is = *report;
    h->count++;
}

/* The names of what each rank begins, "small rows large ". */
static void begins(const tsi_step_list *list, char out[256])
{
    out[0] = '\0';
    for (int32_t i = 0; i < list->action_count; i++)
        if (list->action[i].group >= 0) strcat(strcat(out, list->action[i].what), " ");
}

/* By this pass alone. */
static ts_program *deferred(test *t, const char *text, heard *h)
{
    ts_program *program = NULL, *better = NULL;
    ts_reorder_options options = { .struct_size = sizeof options, .passes = TS_PASS_DEFER };
    int64_t found = -1;
    TEST_OK(t, ts_program_parse(text, &program));
    TEST_OK(t, ts_program_reorder(program, &options, hear, h, &better));
    TEST_OK(t, ts_program_check(better, NULL, NULL, NULL, &found));
    TEST_CHECK(t, found == 0 && h->count == 1 && strcmp(h->is.pass, "defer") == 0);
    ts_program_destroy(program);
    return better;
}

/* 10, a round of 30, rows of 20 beside 25, 50 and 50, 5: the large one begins behind `next`, when
 * the first round is over. On rank 1 `next` takes less and the round is not over then: it begins
 * behind the same operations all the same. */
TS_TEST(rows_pass_the_rounds_of_a_sum)
{
    static const char *const texts[] = {
        HEAD "rank 0\n" VALUES SUM ROWS FREE NEXT("50") END
        "rank 1\n" VALUES SUM ROWS FREE NEXT("2") END,
        HEAD "rank 0\n" VALUES SUM ROWS FREE NEXT("50") END
        "rank 1\n" VALUES SUM ROWS FREE NEXT("50") END,
    };
    char order[2][256];
    for (int slow = 0; slow < 2; slow++) {
        heard h = { .count = 0 };
        ts_program *better = deferred(t, texts[slow], &h);
        for (int r = 0; r < 2; r++)
            begins(&better->step->list[r], order[r]);
        TEST_TEXT(t, order[0], "small rows large ");
        TEST_TEXT(t, order[1], order[0]);
        TEST_SAY(t,
                 h.is.kept == 1 && h.is.makespan_before_us == 170 && h.is.makespan_after_us == 140,
                 "from %g to %g us: %s", h.is.makespan_before_us, h.is.makespan_after_us, h.is.why);
        ts_program_destroy(better);
    }
}

/* Ranks that do not begin the same operations, and messages, keep their order: no order of begins
 * would be that of all. So does a sum that is needed first. */
TS_TEST(what_ranks_could_not_agree_on_stays)
{
    static const char *const texts[] = {
        HEAD "group own 0\nrank 0\n" VALUES
             "gather mine over=own queue=rows bytes=64 reads=h us=1\n" SUM ROWS FREE NEXT("50") END
        "rank 1\n" VALUES SUM ROWS FREE NEXT("50") END,
        HEAD "rank 0\n" VALUES SUM ROWS FREE NEXT("50") "send n to=1 bytes=8 reads=y\n" END
                                                        "rank 1\n" VALUES SUM ROWS FREE NEXT(
                                                            "50") "receive n from=0 bytes=8\n" END,
        HEAD "rank 0\n" VALUES SUM
             "wait reads=moved\noperator sooner reads=moved us=1\n" ROWS FREE NEXT("50") END
        "rank 1\n" VALUES SUM
        "wait reads=moved\noperator sooner reads=moved us=1\n" ROWS FREE NEXT("50") END,
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        heard h = { .count = 0 };
        ts_program *better = deferred(t, texts[i], &h);
        TEST_SAY(t, h.is.kept == 0 && h.is.moves == 0, "text %zu: %lld moves", i,
                 (long long)h.is.moves);
        ts_program_destroy(better);
    }
}
