/* SPDX-License-Identifier: Apache-2.0 */
/* plan_program.c - a catalogue of broken programs: each is a good one with a line changed, and what
 * is wrong with it is found and named. The good ones have nothing wrong with them. */
#include "base/alloc.h"
#include "harness/test.h"
#include "plan/step_reorder.h"
#include "plan/step_wide.h"
#include "tessera/program.h"

/* ---- good programs --------------------------------------------------------------------------- */

typedef struct base {
    const char *head;
    int32_t ranks; /* as often stands the body, with these ranks before it */
    const char *const *rank;
    const char *body[4]; /* of each rank; NULL: as the one before */
} base;

static const char *const zero_one[] = { "rank 0\n", "rank 1\n" };

/* Two ranks that gather a layer, compute, add up and update. */
#define SHARDED_HEAD "step 1\nranks 2\nqueue comm\ngroup fsdp 0,1 fsdp\ngroup tp 0,1 tp\n"
#define SHARDED_BODY                                                                               \
    "peak 2432\n"                                                                                  \
    "holds w.shard 128 parameter fsdp:S(0)\n"                                                      \
    "takes x 64 activation fsdp:S(0)\n"                                                            \
    "value w 1024 gathered\n"                                                                      \
    "value h 64 activation\n"                                                                      \
    "value g 1024 gradient\n"                                                                      \
    "value s 64 other\n"                                                                           \
    "value t 64 other\n"                                                                           \
    "leaves g.shard 128 gradient\n"                                                                \
    "gather w over=fsdp queue=comm bytes=1024 reads=w.shard@fsdp:S(0) makes=w@fsdp:R at=a.c:1\n"   \
    "operator norm reads=x@fsdp:S(0) writes=x at=a.c:2 us=3\n"                                     \
    "wait reads=w at=a.c:3\n"                                                                      \
    "forward block reads=x@fsdp:S(0),w@fsdp:R makes=h@fsdp:S(0) at=a.c:4 us=9\n"                   \
    "operator loss reads=h@fsdp:S(0) makes=s@fsdp:P(sum) at=a.c:5 us=1\n"                          \
    "all_reduce loss over=fsdp queue=comm bytes=64 reads=s@fsdp:P(sum) makes=t@fsdp:R at=a.c:6\n"  \
    "backward block reads=h@fsdp:S(0),w@fsdp:R makes=g@fsdp:P(sum) frees=x,h at=a.c:7 us=9\n"      \
    "release frees=w at=a.c:8\n"                                                                   \
    "reduce g over=fsdp queue=comm bytes=1024 reads=g@fsdp:P(sum) makes=g.shard@fsdp:S(0) "        \
    "at=a.c:9\n"                                                                                   \
    "wait reads=t at=a.c:10\n"                                                                     \
    "operator log reads=t@fsdp:R frees=t,s at=a.c:11 us=1\n"                                       \
    "wait reads=g.shard at=a.c:12\n"                                                               \
    "release frees=g at=a.c:13\n"                                                                  \
    "update w reads=g.shard@fsdp:S(0) writes=w.shard@fsdp:S(0) at=a.c:14 us=2\n"

/* Two stages, two micro-batches, messages that are buffered. */
#define STAGED_HEAD "step 1\nranks 2\nstages 2 micro-batches 2\nqueue send\nqueue recv\n"
#define STAGED_FIRST                                                                               \
    "value a.0 8 activation\nvalue a.1 8 activation\nvalue d.0 8 gradient\nvalue d.1 8 gradient\n" \
    "forward f stage=0 micro=0 makes=a.0 us=1 at=p.c:1\n"                                          \
    "send h micro=0 to=1 queue=send bytes=8 reads=a.0 at=p.c:2\n"                                  \
    "forward f stage=0 micro=1 makes=a.1 us=1 at=p.c:3\n"                                          \
    "send h micro=1 to=1 queue=send bytes=8 reads=a.1 at=p.c:4\n"                                  \
    "receive d micro=0 from=1 queue=recv bytes=8 makes=d.0 at=p.c:5\n"                             \
    "wait reads=d.0 at=p.c:6\n"                                                                    \
    "wait reads=a.0 at=p.c:7\n"                                                                    \
    "backward f stage=0 micro=0 reads=d.0 frees=a.0,d.0 us=2 at=p.c:8\n"                           \
    "receive d micro=1 from=1 queue=recv bytes=8 makes=d.1 at=p.c:9\n"                             \
    "wait reads=d.1 at=p.c:10\n"                                                                   \
    "wait reads=a.1 at=p.c:11\n"                                                                   \
    "backward f stage=0 micro=1 reads=d.1 frees=a.1,d.1 us=2 at=p.c:12\n"
#define STAGED_LAST                                                                                \
    "value b.0 8 activation\nvalue b.1 8 activation\nvalue e.0 8 gradient\nvalue e.1 8 gradient\n" \
    "receive h micro=0 from=0 queue=recv bytes=8 makes=b.0 at=q.c:1\n"                             \
    "wait reads=b.0 at=q.c:2\n"                                                                    \
    "forward l stage=1 micro=0 reads=b.0 us=1 at=q.c:3\n"                                          \
    "backward l stage=1 micro=0 reads=b.0 makes=e.0 us=2 at=q.c:4\n"                               \
    "send d micro=0 to=0 queue=send bytes=8 reads=e.0 at=q.c:5\n"                                  \
    "receive h micro=1 from=0 queue=recv bytes=8 makes=b.1 at=q.c:6\n"                             \
    "wait reads=b.1 at=q.c:7\n"                                                                    \
    "forward l stage=1 micro=1 reads=b.1 us=1 at=q.c:8\n"                                          \
    "backward l stage=1 micro=1 reads=b.1 makes=e.1 us=2 at=q.c:9\n"                               \
    "send d micro=1 to=0 queue=send bytes=8 reads=e.1 at=q.c:10\n"                                 \
    "wait reads=e.0,e.1 at=q.c:11\n"                                                               \
    "release frees=b.0,b.1,e.0,e.1 at=q.c:12\n"

/* 4096 ranks: 4 stages in a line, groups of 8 inside; the first and the last have one neighbour. */
#define WIDE_HEAD "step 1\nranks 4096\nwide\nqueue comm\ngroups tp 8:1 tp\ngroups fsdp 128:8 fsdp\n"
#define WIDE_FIRST                                                                                 \
    "value a 8 activation\n"                                                                       \
    "operator begin makes=a us=1 at=w.c:1\n"                                                       \
    "all_reduce s over=tp bytes=8 at=w.c:2\n"                                                      \
    "send h to=+1024 bytes=8 reads=a at=w.c:3\n"                                                   \
    "reduce g over=fsdp bytes=64 at=w.c:4\n"                                                       \
    "release frees=a at=w.c:5\n"
#define WIDE_MIDDLE                                                                                \
    "value b 8 activation\n"                                                                       \
    "receive h from=-1024 bytes=8 makes=b at=m.c:1\n"                                              \
    "all_reduce s over=tp bytes=8 at=m.c:2\n"                                                      \
    "send h to=+1024 bytes=8 reads=b at=m.c:3\n"                                                   \
    "reduce g over=fsdp bytes=64 at=m.c:4\n"                                                       \
    "release frees=b at=m.c:5\n"
#define WIDE_LAST                                                                                  \
    "value c 8 activation\n"                                                                       \
    "receive h from=-1024 bytes=8 makes=c at=l.c:1\n"                                              \
    "all_reduce s over=tp bytes=8 at=l.c:2\n"                                                      \
    "reduce g over=fsdp bytes=64 at=l.c:3\n"                                                       \
    "release frees=c at=l.c:4\n"
static const char *const in_line[] = { "rank 0..1023\n", "rank 1024..3071\n", "rank 3072..4095\n" };

/* A gather in two parts, and what passes between them. */
#define PARTED_HEAD "step 1\nranks 2\nqueue comm\ngroup all 0,1 fsdp\n"
#define PARTED_BODY                                                                                \
    "holds w.shard 512 parameter fsdp:S(0)\nholds u.shard 8 parameter\n"                           \
    "value w 1024 gathered\nvalue u 16 gathered\n"                                                 \
    "gather part.1/2.w over=all queue=comm bytes=512 reads=w.shard@fsdp:S(0) makes=w at=s.c:1\n"   \
    "operator a us=3 at=s.c:2\n"                                                                   \
    "gather u over=all queue=comm bytes=16 reads=u.shard makes=u at=s.c:3\n"                       \
    "gather part.2/2.w over=all queue=comm bytes=512 reads=w.shard@fsdp:S(0) writes=w@fsdp:R "     \
    "at=s.c:4\n"                                                                                   \
    "wait reads=u at=s.c:5\n"                                                                      \
    "operator b reads=u frees=u us=3 at=s.c:6\n"                                                   \
    "wait reads=w at=s.c:7\n"                                                                      \
    "operator c reads=w@fsdp:R frees=w us=3 at=s.c:8\n"

enum { SHARDED, STAGED, WIDE, PARTED, BASES };
static const base bases[BASES] = {
    [SHARDED] = { SHARDED_HEAD, 2, zero_one, { SHARDED_BODY } },
    [STAGED] = { STAGED_HEAD, 2, zero_one, { STAGED_FIRST, STAGED_LAST } },
    [WIDE] = { WIDE_HEAD, 3, in_line, { WIDE_FIRST, WIDE_MIDDLE, WIDE_LAST } },
    [PARTED] = { PARTED_HEAD, 2, zero_one, { PARTED_BODY } },
};

/* ---- changes --------------------------------------------------------------------------------- */

typedef struct broken {
    int32_t of;
    const char *line;        /* the first line that has this in it, on and after rank `from` */
    int32_t from, all;       /* all: on every rank */
    const char *instead;     /* "": the line goes; "+...": stands behind it; "-...": before it */
    const char *kind, *says; /* what is found, and words of the sentence */
    int64_t memory;
    int32_t meeting, no_hidden;
} broken;

static const broken catalogue[] = {
    /* Order and number of collectives. */
    { SHARDED, "all_reduce loss", 1, 0, "", "mismatch", "a.c:6", 0, 0, 0 },
    { SHARDED, "all_reduce loss", 0, 0, "", "mismatch", "a.c:9", 0, 0, 0 },
    { SHARDED, "gather w", 1, 0, "", "mismatch", "a.c:1 ", 0, 0, 0 },
    { SHARDED, "reduce g", 1, 0, "", "unmet", "", 0, 0, 0 },
    { SHARDED, "operator log", 0, 0, "+gather y over=fsdp bytes=8 at=z.c:9\n", "unmet", "z.c:9", 0,
      0, 0 },
    { SHARDED, "gather w", 1, 0, "-all_reduce n over=fsdp bytes=8 at=z.c:1\n", "mismatch", "z.c:1",
      0, 0, 0 },
    { SHARDED, "all_reduce loss", 1, 0,
      "reduce loss over=fsdp queue=comm bytes=64 reads=s makes=t at=a.c:6\n", "mismatch", "a.c:6",
      0, 0, 0 },
    { SHARDED, "all_reduce loss", 1, 0,
      "all_reduce loss over=fsdp queue=comm bytes=32 reads=s makes=t at=a.c:6\n", "mismatch",
      "32 bytes", 0, 0, 0 },
    { SHARDED, "all_reduce loss", 1, 0,
      "all_reduce norm over=fsdp queue=comm bytes=64 reads=s makes=t at=a.c:6\n", "mismatch",
      "norm", 0, 0, 0 },
    { SHARDED, "gather w", 0, 0,
      "gather w over=tp queue=comm bytes=1024 reads=w.shard makes=w at=a.c:1\n", "unmet", "", 0, 0,
      0 },
    { SHARDED, "gather w", 1, 0,
      "gather w over=fsdp channel=1 queue=comm bytes=1024 reads=w.shard makes=w at=a.c:1\n",
      "unmet", "channel", 0, 0, 0 },
    /* Waits. */
    { SHARDED, "wait reads=w ", 0, 0, "", "race", "a.c:1", 0, 0, 0 },
    { SHARDED, "wait reads=w ", 1, 0, "", "race", "a.c:4", 0, 0, 0 },
    { SHARDED, "wait reads=t", 0, 0, "", "race", "a.c:6", 0, 0, 0 },
    { SHARDED, "wait reads=g.shard", 0, 1, "", "race", "a.c:13", 0, 0, 0 },
    { SHARDED, "wait reads=w ", 0, 0, "wait reads=x\n", "race", "", 0, 0, 0 },
    { SHARDED, "operator norm", 0, 0, "operator norm writes=w.shard at=a.c:2\n", "race", "a.c:2", 0,
      0, 0 },
    { SHARDED, "all_reduce loss", 0, 0, "+operator late writes=s at=z.c:2\n", "race", "z.c:2", 0, 0,
      0 },
    { SHARDED, "all_reduce loss", 0, 1, "+release frees=s\n", "race", "frees s", 0, 0, 0 },
    { SHARDED, "update w", 0, 1,
      "+gather z over=fsdp queue=comm bytes=8 reads=g.shard writes=w.shard at=z.c:3\n", "unwaited",
      "z.c:3", 0, 0, 0 },
    /* Lives. */
    { SHARDED, "release frees=w", 0, 0, "+operator late reads=w at=z.c:4\n", "released", "z.c:4", 0,
      0, 0 },
    { SHARDED, "release frees=w", 0, 0, "+operator late reads=w at=z.c:4\n", "released", "a.c:8", 0,
      0, 0 },
    { SHARDED, "release frees=w", 0, 0, "+release frees=w\n", "released", "", 0, 0, 0 },
    { SHARDED, "backward block", 0, 0, "+operator late writes=h at=z.c:5\n", "released", "a.c:7", 0,
      0, 0 },
    { SHARDED, "forward block", 0, 0, "-operator early reads=h at=z.c:6\n", "absent", "z.c:6", 0, 0,
      0 },
    { SHARDED, "gather w", 0, 0, "-operator early reads=w at=z.c:7\n", "absent", "z.c:7", 0, 0, 0 },
    { SHARDED, "gather w", 0, 0, "-wait reads=w at=z.c:8\n", "absent", "z.c:8", 0, 0, 0 },
    { SHARDED, "forward block", 0, 0, "+operator again makes=h at=z.c:9\n", "remade", "a.c:4", 0, 0,
      0 },
    { SHARDED, "operator norm", 0, 0, "operator norm makes=x at=a.c:2\n", "remade", "before", 0, 0,
      0 },
    { SHARDED, "release frees=g ", 0, 0, "", "life", "still there", 0, 0, 0 },
    { SHARDED, "release frees=w", 0, 0, "", "life", "w of rank 0", 0, 0, 0 },
    { SHARDED, "update w", 0, 0, "+release frees=w.shard\n", "life", "not there", 0, 0, 0 },
    { SHARDED, "update w", 0, 0, "+release frees=g.shard\n", "life", "g.shard", 0, 0, 0 },
    /* Once. */
    { SHARDED, "update w", 0, 0, "+update w writes=w.shard at=z.c:10\n", "twice", "z.c:10", 0, 0,
      0 },
    { SHARDED, "reduce g", 0, 1, "-reduce g over=fsdp queue=comm bytes=1024 reads=g at=z.c:11\n",
      "twice", "a.c:9", 0, 0, 0 },
    { SHARDED, "forward block", 0, 1, "+forward block reads=x at=z.c:12\n", "twice", "", 0, 0, 0 },
    { SHARDED, "backward block", 0, 0, "-backward block reads=h at=z.c:13\n", "twice", "", 0, 0,
      0 },
    /* Placements. */
    { SHARDED, "forward block", 0, 0,
      "forward block reads=x@fsdp:R,w@fsdp:R makes=h@fsdp:S(0) at=a.c:4\n", "placement", "fsdp:R",
      0, 0, 0 },
    { SHARDED, "forward block", 0, 0,
      "forward block reads=x,w@fsdp:S(0) makes=h@fsdp:S(0) at=a.c:4\n", "placement", "a.c:1", 0, 0,
      0 },
    { SHARDED, "backward block", 0, 0,
      "backward block reads=h@fsdp:S(1),w makes=g@fsdp:P(sum) frees=x,h at=a.c:7\n", "placement",
      "a.c:4", 0, 0, 0 },
    { SHARDED, "update w", 0, 0, "update w reads=g.shard@fsdp:R writes=w.shard at=a.c:14\n",
      "placement", "a.c:9", 0, 0, 0 },
    { SHARDED, "operator log", 0, 0, "-operator peek reads=s@fsdp:R at=z.c:14\n", "unreduced",
      "a.c:5", 0, 0, 0 },
    { SHARDED, "backward block", 0, 0, "+operator peek reads=g@fsdp:S(0) at=z.c:15\n", "unreduced",
      "z.c:15", 0, 0, 0 },
    { SHARDED, "gather w", 0, 1,
      "gather w over=tp queue=comm bytes=1024 reads=w.shard@fsdp:S(0) makes=w@fsdp:R at=a.c:1\n",
      "axis", "nothing to gather", 0, 0, 0 },
    { SHARDED, "reduce g", 0, 1,
      "reduce g over=tp queue=comm bytes=1024 reads=g@fsdp:P(sum) makes=g.shard@fsdp:S(0)\n",
      "axis", "nothing to add up", 0, 0, 0 },
    { SHARDED, "all_reduce loss", 0, 1,
      "+all_reduce again over=fsdp queue=comm bytes=64 reads=t@fsdp:R at=z.c:16\n", "axis",
      "z.c:16", 0, 0, 0 },
    /* Memory and policy. */
    { SHARDED, "operator norm", 0, 0, "+operator same reads=x\n", "memory", "1 more than the cap",
      2431, 0, 0 },
    { SHARDED, "peak", 0, 0, "peak 2433\n", "peak", "2433 that are planned", 0, 0, 0 },
    { SHARDED, "value h", 1, 0, "value h 65 activation\n", "peak", "rank 1", 0, 0, 0 },
    { SHARDED, "value g ", 0, 0, "value g 1032 gradient\n", "peak", "a.c:7", 0, 0, 0 },
    { SHARDED, "all_reduce loss", 0, 1,
      "all_reduce loss over=fsdp queue=comm bytes=64 reads=s makes=t hidden=1 at=a.c:6\n", "hidden",
      "a.c:6", 0, 0, 1 },
    /* Messages and stages. */
    { STAGED, "send h micro=1", 0, 0, "", "unmet", "q.c:6", 0, 0, 0 },
    { STAGED, "receive h micro=1", 1, 0, "-receive h micro=1 from=0 bytes=8\n", "unmet", "", 0, 0,
      0 },
    { STAGED, "send d micro=0", 1, 0, "send d micro=0 to=0 queue=send bytes=4 reads=e.0 at=q.c:5\n",
      "mismatch", "4 bytes", 0, 0, 0 },
    { STAGED, "send h micro=0", 0, 0, "send h micro=1 to=1 queue=send bytes=8 reads=a.0 at=p.c:2\n",
      "mismatch", "p.c:2", 0, 0, 0 },
    { STAGED, "forward f stage=0 micro=0", 0, 0,
      "-receive x from=1 bytes=8 at=z.c:17\nsend y to=1 bytes=8\n", "mismatch", "z.c:17", 0, 0, 0 },
    { STAGED, "wait reads=a.0", 0, 0, "", "race", "p.c:2", 0, 0, 0 },
    { STAGED, "wait reads=b.0", 1, 0, "", "race", "q.c:1", 0, 0, 0 },
    { STAGED, "backward f stage=0 micro=1", 0, 0, "release frees=a.1,d.1\n", "stages", "backward",
      0, 0, 0 },
    { STAGED, "forward l stage=1 micro=0", 1, 0, "", "stages", "forward", 0, 0, 0 },
    { STAGED, "forward l stage=1 micro=1", 1, 0, "forward l stage=1 micro=7\n", "stages", "micro=7",
      0, 0, 0 },
    { STAGED, "receive d micro=0", 0, 0,
      "receive d micro=0 from=1 bytes=8 makes=d.0 at=p.c:5\nwait reads=a.0,a.1\nreceive z from=1 "
      "bytes=1 at=z.c:18\n",
      "mismatch", "z.c:18", 0, 0, 0 },
    /* Ranks among thousands. */
    { WIDE, "all_reduce s", 1, 0, "all_reduce s over=tp bytes=4 at=m.c:2\n", "none", "", 0, 0, 0 },
    { WIDE, "send h", 0, 0, "send h to=+1023 bytes=8 reads=a at=w.c:3\n", "unmet", "", 0, 0, 0 },
    { WIDE, "send h", 0, 0, "send h to=-1024 bytes=8 reads=a at=w.c:3\n", "unmet", "-1024", 0, 0,
      0 },
    { WIDE, "receive h", 2, 0, "receive h from=+1024 bytes=8 makes=c at=l.c:1\n", "unmet",
      "rank 4096", 0, 0, 0 },
    { WIDE, "rank 0..1023", 0, 0, "rank 0..776,778..1023\n", "unmet", "rank 777", 0, 0, 0 },
    { WIDE, "rank 0..1023", 0, 0,
      "rank 777\nall_reduce s over=tp bytes=8 at=z.c:19\nrank "
      "0..776,778..1023\n",
      "unmet", "rank 777", 0, 0, 0 },
    { WIDE, "rank 3072..4095", 0, 0,
      "rank 4000\nvalue c 8 activation\nreceive h from=-1024 bytes=8 makes=c\nreduce g over=fsdp "
      "bytes=64\nall_reduce s over=tp bytes=8 at=z.c:20\nrelease frees=c\nrank "
      "3072..3999,4001..4095\n",
      "none", "", 0, 0, 0 }, /* its neighbours wait for it, and it for nobody who waits for them */
    { WIDE, "rank 3072..4095", 0, 0,
      "rank 4000,4009\nvalue c 8 activation\nreceive h from=-1024 bytes=8 makes=c\nreduce g "
      "over=fsdp bytes=64\nall_reduce s over=tp bytes=8 at=z.c:20\nrelease frees=c\nrank "
      "3072..3999,4001..4008,4010..4095\n",
      "deadlock", "z.c:20", 0, 0, 0 }, /* each is waited for by the other's neighbour */
    { WIDE, "rank 3072..4095", 0, 0,
      "rank 4000\nvalue c 8 activation\nreceive h from=-1024 bytes=8 makes=c\nall_reduce s over=tp "
      "bytes=9 at=z.c:21\nreduce g over=fsdp bytes=64\nrelease frees=c\nrank "
      "3072..3999,4001..4095\n",
      "mismatch", "z.c:21", 0, 0, 0 },
    /* Operations in parts. */
    { PARTED, "gather part.2/2.w", 1, 0, "", "unmet", "s.c:4", 0, 0, 0 }, /* on one rank */
    { PARTED, "gather part.2/2.w", 1, 0, "", "unmet", "followed by part 2 of 2", 0, 0, 0 },
    { PARTED, "gather part.2/2.w", 0, 1, "", "unmet", "followed by part 2 of 2", 0, 0, 0 },
    { PARTED, "gather part.1/2.w", 1, 0, "", "unmet", "preceded by part 1 of 2", 0, 0, 0 },
    { PARTED, "gather part.2/2.w", 1, 0,
      "gather part.1/2.w over=all queue=comm bytes=512 reads=w.shard writes=w at=z.c:1\n",
      "mismatch", "z.c:1", 0, 0, 0 }, /* the same half twice */
    { PARTED, "gather part.2/2.w", 0, 1,
      "gather part.2/3.w over=all queue=comm bytes=512 reads=w.shard writes=w at=z.c:2\n", "unmet",
      "z.c:2", 0, 0, 0 },
    { PARTED, "gather part.2/2.w", 1, 0,
      "gather part.2/2.w over=all queue=comm bytes=511 reads=w.shard writes=w at=z.c:3\n",
      "mismatch", "z.c:3", 0, 0, 0 },
    { PARTED, "wait reads=w", 0, 1,
      "wait reads=w\ngather part.2/2.w over=all queue=comm bytes=512 reads=w.shard writes=w "
      "at=z.c:4\n",
      "unmet", "z.c:4", 0, 0, 0 }, /* a half too many */
    { PARTED, "wait reads=w", 0, 1, "", "race", "s.c:4", 0, 0, 0 },
};
enum { BROKEN = sizeof catalogue / sizeof catalogue[0] };

/* ---- making texts ---------------------------------------------------------------------------- */

static const char *body_of(const base *b, int32_t rank)
{
    while (!b->body[rank])
        rank--;
    return b->body[rank];
}

/* Changes the line in one rank's part, if it is there; false: it is not. */
static bool change(tsi_text *text, const char *part, const broken *c)
{
    const char *at = part;
    while (at && strncmp(at, c->line, strlen(c->line)) != 0) {
        at = strchr(at, '\n');
        at = at && at[1] ? at + 1 : NULL;
    }
    if (!at) {
        tsi_text_add(text, part);
        return false;
    }
    const char *end = strchr(at, '\n') + 1;
    bool behind = c->instead[0] == '+', before = c->instead[0] == '-';
    tsi_text_add_n(text, part, (size_t)(at - part));
    if (before) tsi_text_add(text, c->instead + 1);
    if (behind || before) tsi_text_add_n(text, at, (size_t)(end - at));
    if (behind) tsi_text_add(text, c->instead + 1);
    if (!behind && !before) tsi_text_add(text, c->instead);
    tsi_text_add(text, end);
    return true;
}

static bool make_text(const base *b, const broken *c, tsi_text *text)
{
    bool done = !c;
    tsi_text_add(text, b->head);
    for (int32_t r = 0; r < b->ranks; r++) {
        tsi_text part = { 0 };
        tsi_text_add(&part, b->rank[r]);
        tsi_text_add(&part, body_of(b, r));
        if (c && r >= c->from && (!done || c->all))
            done = change(text, part.data, c) || done;
        else
            tsi_text_add(text, part.data);
        tsi_text_release(&part);
    }
    return done;
}

/* ---- looking --------------------------------------------------------------------------------- */

typedef struct wanted {
    const char *kind, *says;
    int32_t found;
    tsi_text all;
} wanted;

static void look(const char *kind, const char *text, void *context)
{
    wanted *w = context;
    tsi_text_printf(&w->all, "%s: %s\n", kind, text);
    w->found += w->kind && strcmp(kind, w->kind) == 0 && strstr(text, w->says);
}

static int64_t check(test *t, const char *text, const ts_program_rules *rules, wanted *w)
{
    ts_program *program = NULL;
    int64_t count = -1;
    ts_status status = ts_program_parse(text, &program);
    if (status == TS_OK) status = ts_program_check(program, rules, look, w, &count);
    TEST_SAY(t, status == TS_OK, "%s\n%s", ts_last_error(), text);
    ts_program_destroy(program);
    return count;
}

TS_TEST(good_programs_have_nothing_wrong)
{
    for (int32_t b = 0; b < BASES; b++) {
        tsi_text text = { 0 };
        wanted w = { 0 };
        (void)make_text(&bases[b], NULL, &text);
        TEST_SAY(t, check(t, text.data, NULL, &w) == 0, "%d: %s", b, w.all.data);
        tsi_text_release(&text);
        tsi_text_release(&w.all);
    }
}

TS_TEST(broken_programs_are_found_and_named)
{
    int32_t wrong = 0;
    for (int32_t i = 0; i < BROKEN; i++) {
        const broken *c = &catalogue[i];
        tsi_text text = { 0 };
        bool none = strcmp(c->kind, "none") == 0; /* groups lie within a stage: still good */
        wanted w = { .kind = c->kind, .says = c->says };
        ts_program_rules rules = { sizeof rules, c->memory, c->meeting, c->no_hidden };
        TEST_SAY(t, make_text(&bases[c->of], c, &text), "%d: no line '%s'", i, c->line);
        int64_t count = check(t, text.data, &rules, &w);
        TEST_SAY(t, none ? count == 0 : w.found > 0, "%d: wanted %s (%s), found %lld:\n%s\nof\n%s",
                 i, c->kind, c->says, (long long)count, w.all.data ? w.all.data : "", text.data);
        wrong += !none;
        tsi_text_release(&text);
        tsi_text_release(&w.all);
    }
    TEST_SAY(t, wrong >= 60, "only %d broken programs", wrong);
}

/* ---- heads and empty lists ------------------------------------------------------------------- */

TS_TEST(an_empty_list_is_a_list)
{
    wanted w = { 0 }, peak = { .kind = "peak", .says = "9 that are planned" };
    TEST_CHECK(t, check(t, "step 1\nranks 4\nwide\nrank 0..1\n", NULL, &w) == 0);
    TEST_CHECK(t, check(t, "step 1\nranks 2\nrank 0\nrank 1\npeak 9\n", NULL, &peak) == 1);
    TEST_SAY(t, peak.found == 1, "%s", peak.all.data);
    tsi_text_release(&w.all);
    tsi_text_release(&peak.all);
}

TS_TEST(wide_stands_before_groups)
{
    ts_program *program = NULL;
    ts_status status = ts_program_parse("step 1\nranks 4\ngroup g 0,1\nwide\n", &program);
    TEST_SAY(t, status == TS_ERR_ARG && strstr(ts_last_error(), "before groups and ranks"), "%s",
             ts_last_error());
    ts_program_destroy(program);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The parts of a whole find each other among those of all others before the test's deadline. */
TS_TEST(parts_of_many_operations_are_all_there)
{
    enum { WHOLES = 40000 };
    tsi_text text = { 0 };
    wanted w = { .kind = "unmet",
                 .says = "part.1/2.w77 over=g (action 78 of rank 0) is not followed "
                         "by part 2 of 2" };
    tsi_text_add(&text, "step 1\nranks 1\nqueue c\ngroup g 0\nrank 0\n");
    for (int part = 1; part <= 2; part++)
        for (int i = 0; i < WHOLES; i++)
            if (part == 1 || i != 77)
                tsi_text_printf(&text, "gather part.%d/2.w%d over=g queue=c bytes=4\n", part, i);
    TEST_CHECK(t, check(t, text.data, NULL, &w) == 1);
    TEST_SAY(t, w.found == 1, "%s", w.all.data);
    tsi_text_release(&w.all);
    tsi_text_release(&text);
}

/* ---- ties ------------------------------------------------------------------------------------ */

/* A wait for everything is tied to the one before, and no further back. */
TS_TEST(waits_for_everything_have_few_ties)
{
    enum { WAITS = 1000 };
    tsi_text text = { 0 };
    tsi_step *step = NULL;
    tsi_ties ties = { 0 };
    tsi_text_add(&text, "step 1\nranks 1\nrank 0\n");
    for (int i = 0; i < WAITS; i++)
        tsi_text_add(&text, "operator\nwait\n");
    ts_status status = tsi_step_parse(text.data, &step);
    if (status == TS_OK) status = tsi_ties_make(&step->list[0], &ties);
    TEST_SAY(t, status == TS_OK, "%s", ts_last_error());
    if (status == TS_OK)
        TEST_SAY(t, ties.first[ties.count] <= 5 * WAITS, "%d ties", ties.first[ties.count]);
    tsi_ties_release(&ties);
    tsi_step_destroy(step);
    tsi_text_release(&text);
}

/* ---- reordering ------------------------------------------------------------------------------ */

/* Most ranks need more than they planned, which is no fault; the last ones more than the cap. */
TS_TEST(a_cap_is_kept_by_ranks_behind_many_findings)
{
    enum { RANKS = 210, SMALL = 205, CAP = 1008 };
    tsi_text text = { 0 };
    ts_program *program = NULL, *better = NULL;
    ts_program_times times = { .struct_size = sizeof times };
    tsi_text_printf(&text, "step 1\nranks %d\nqueue comm\ngroup all 0..%d\n", RANKS, RANKS - 1);
    for (int r = 0; r < RANKS; r++) {
        int bytes = r < SMALL ? 100 : CAP - 8;
        tsi_text_printf(&text,
                        "rank %d\npeak %d\nholds s 8 parameter\nvalue a %d activation\n"
                        "value w %d gathered\noperator b makes=a us=500\n"
                        "operator c reads=a frees=a us=500\n"
                        "gather w over=all queue=comm bytes=1000 reads=s makes=w\n"
                        "wait reads=w\noperator d reads=w frees=w us=5\n",
                        r, bytes + 8, bytes, bytes);
    }
    ts_status status = ts_program_parse(text.data, &program);
    if (status == TS_OK)
        status =
            ts_program_reorder(program,
                               &(ts_reorder_options){ .struct_size = sizeof(ts_reorder_options),
                                                      .passes = TS_PASS_HOIST },
                               NULL, NULL, &better);
    if (status == TS_OK) status = ts_program_simulate(better, NULL, &times, NULL, NULL);
    TEST_SAY(t, status == TS_OK, "%s", ts_last_error());
    TEST_SAY(t, times.peak_bytes == CAP, "%lld bytes", (long long)times.peak_bytes);
    ts_program_destroy(program);
    ts_program_destroy(better);
    tsi_text_release(&text);
}

/* By the sink alone; microseconds, or -1. *most: bytes that a rank holds then. */
static double sunk_us(test *t, const char *text, int64_t cap, int64_t *most)
{
    ts_program *program = NULL, *better = NULL;
    ts_program_times times = { .struct_size = sizeof times, .makespan_us = -1 };
    ts_reorder_options options = { .struct_size = sizeof options,
                                   .passes = TS_PASS_SINK,
                                   .memory_bytes_max = cap };
    TEST_OK(t, ts_program_parse(text, &program));
    TEST_OK(t, ts_program_reorder(program, &options, NULL, NULL, &better));
    TEST_OK(t, ts_program_simulate(better, NULL, &times, NULL, NULL));
    ts_program_destroy(program);
    ts_program_destroy(better);
    *most = times.peak_bytes;
    return times.makespan_us;
}

/* What was gathered is known to be there when the reduction behind it is over, but who uses it
 * waits for the gather alone; the wait for the reduction comes before the update, or before its
 * memory is needed. */
TS_TEST(waits_come_when_they_are_needed_or_what_they_hold_is)
{
    enum { HELD = 1116, ROOM = 1616 };
    static const char body[] =
        "holds s 8 parameter\nvalue g 1000 gradient\nvalue w 100 gathered\nvalue r 8 gradient\n"
        "value x 500 activation\noperator a makes=g us=10\n"
        "gather w over=all queue=comm bytes=100 reads=s makes=w us=5\n"
        "reduce r over=all queue=comm bytes=1000 reads=g makes=r us=50\n"
        "wait reads=r\nrelease frees=g\nwait reads=w\n"
        "operator b reads=w makes=x us=100\nrelease frees=w,x\nupdate r reads=r us=1\n"
        "release frees=r\n";
    tsi_text text = { 0 };
    int64_t most = 0;
    tsi_text_printf(&text, "step 1\nranks 2\nqueue comm\ngroup all 0,1\nrank 0\n%srank 1\n%s", body,
                    body);
    double us = sunk_us(t, text.data, ROOM, &most);
    TEST_SAY(t, us == 10 + 5 + 100 + 1 && most == ROOM, "%g us, %lld bytes", us, (long long)most);
    us = sunk_us(t, text.data, ROOM - 1, &most);
    TEST_SAY(t, us == 10 + 55 + 100 + 1 && most == HELD, "%g us, %lld bytes", us, (long long)most);
    tsi_text_release(&text);
}

/* An operation of 50 us of which 30 are hidden takes its share of them from computing. */
TS_TEST(what_moves_bytes_takes_of_computing)
{
    static const char text[] = "step 1\nranks 1\nqueue comm\ngroup all 0\nrank 0\n"
                               "holds s 8 parameter\nvalue w 8 gathered\n"
                               "gather w over=all queue=comm bytes=8 reads=s makes=w us=50\n"
                               "operator a us=30\nwait reads=w\noperator b reads=w us=10\n"
                               "release frees=w\n";
    ts_program *program = NULL;
    ts_program_times times = { .struct_size = sizeof times };
    ts_program_costs costs = { .struct_size = sizeof costs };
    TEST_OK(t, ts_program_parse(text, &program));
    TEST_OK(t, ts_program_simulate(program, &costs, &times, NULL, NULL));
    TEST_SAY(t, times.makespan_us == 60 && times.hidden_us == 0, "%g us, %g hidden",
             times.makespan_us, times.hidden_us);
    costs.moving = 0.5;
    TEST_OK(t, ts_program_simulate(program, &costs, &times, NULL, NULL));
    TEST_SAY(t, times.makespan_us == 75 && times.hidden_us == 30 && times.exposed_us == 20,
             "%g us, %g hidden, %g exposed", times.makespan_us, times.hidden_us, times.exposed_us);
    costs.moving = 1.5;
    TEST_EQ(t, ts_program_simulate(program, &costs, &times, NULL, NULL), TS_ERR_ARG);
    ts_program_destroy(program);
}

static void note_split(const ts_reorder_report *r, void *context)
{
    tsi_text_printf(context, "%s %d %s\n", r->pass, r->kept, r->why);
}

/* What is asked for while a long gather is under way passes it; gradients in place and forms stay
 * right; the whole that nothing passes stays whole. */
TS_TEST(a_long_operation_lets_others_pass)
{
    static const char body[] =
        "holds g 4000000 gradient fsdp:P(sum)\nholds s 8 parameter\nvalue u 64 gathered\n"
        "value v 4000000 gathered\n"
        "all_reduce g over=all queue=comm bytes=4000000 reads=g@fsdp:P(sum) writes=g@fsdp:R "
        "us=800\n"
        "operator a us=100\ngather u over=all queue=comm bytes=64 reads=s makes=u us=5\n"
        "wait reads=u\noperator b reads=u frees=u us=900\nwait reads=g\n"
        "update g reads=g@fsdp:R us=1\n"
        "gather v over=all queue=comm bytes=4000000 reads=s makes=v us=800\n"
        "wait reads=v\nrelease frees=v\n";
    tsi_text text = { 0 }, told = { 0 };
    ts_program *program = NULL, *better = NULL, *again = NULL;
    ts_program_times was = { .struct_size = sizeof was }, is = was;
    ts_reorder_options options = { .struct_size = sizeof options, .passes = TS_PASS_SPLIT };
    tsi_text_printf(&text, "step 1\nranks 2\nqueue comm\ngroup all 0,1 fsdp\nrank 0\n%srank 1\n%s",
                    body, body);
    TEST_OK(t, ts_program_parse(text.data, &program));
    TEST_OK(t, ts_program_reorder(program, &options, note_split, &told, &better));
    TEST_OK(t, ts_program_simulate(program, NULL, &was, NULL, NULL));
    TEST_OK(t, ts_program_simulate(better, NULL, &is, NULL, NULL));
    /* Before: 800 of g, 5 of u, 900, 1, 800. Then u comes after at most an eighth of g. */
    TEST_SAY(t, was.makespan_us == 2506 && is.makespan_us < 1920, "%g, then %g us", was.makespan_us,
             is.makespan_us);
    TEST_SAY(t, strstr(told.data, "split 1 1 go in parts") && strstr(told.data, "whole are 1 that"),
             "%s", told.data);
    options.passes = 0;
    TEST_OK(t, ts_program_reorder(better, &options, NULL, NULL, &again)); /* of what has parts */
    ts_program_destroy(program);
    ts_program_destroy(better);
    ts_program_destroy(again);
    tsi_text_release(&text);
    tsi_text_release(&told);
}

TS_TEST(passes_that_are_none_are_refused)
{
    ts_program *program = NULL, *better = NULL;
    ts_reorder_options options = { .struct_size = sizeof options, .passes = TS_PASS_ALL + 1 };
    ts_status status = ts_program_parse("step 1\nranks 1\nrank 0\noperator a\n", &program);
    if (status == TS_OK) status = ts_program_reorder(program, &options, NULL, NULL, &better);
    TEST_SAY(t, status == TS_ERR_ARG && strstr(ts_last_error(), "passes 0x200"), "%s",
             ts_last_error());
    ts_program_destroy(program);
    ts_program_destroy(better);
}

/* ---- many ranks ------------------------------------------------------------------------------ */

TS_TEST(distances_beyond_the_ranks_are_seen_at_once)
{
    wanted w = { .kind = "unmet", .says = "send h of rank 1048575 is with rank 1048576" };
    TEST_CHECK(t, check(t,
                        "step 1\nranks 1048576\nwide\nrank 0\nsend h to=+1\n"
                        "rank 1..1048575\nreceive h from=-1\nsend h to=+1\n",
                        NULL, &w) == 1);
    TEST_SAY(t, w.found == 1, "%s", w.all.data);
    tsi_text_release(&w.all);
}

/* A class with a peer of another is none without any: of four ranks there are four, for good. */
TS_TEST(classes_of_ranks_stay_apart)
{
    wanted w = { .kind = "unmet", .says = "receive h from=1 (action 1 of rank 2)" };
    int64_t found = check(t,
                          "step 1\nranks 4\nwide\nrank 0\nsend h to=+1\n"
                          "rank 1..2\nreceive h from=-1\n",
                          NULL, &w);
    TEST_SAY(t, found == 1 && w.found == 1, "%lld: %s", (long long)found, w.all.data);
    tsi_text_release(&w.all);
}

/* Ranks that do nothing are of one class, whoever is in their groups. */
TS_TEST(groups_with_ranks_that_do_nothing_stay_apart)
{
    wanted w = { .kind = "unmet", .says = ") is met by nothing on rank 0: of group g." };
    int64_t found = check(t,
                          "step 1\nranks 6\nwide\ngroups g 2:3\nrank 3\noperator a\n"
                          "all_reduce over=g bytes=8\nrank 4\nall_reduce over=g bytes=8\n",
                          NULL, &w);
    TEST_SAY(t, found == 2 && w.found == 2, "%lld: %s", (long long)found, w.all.data);
    tsi_text_release(&w.all);
}

TS_TEST(groups_of_long_names_stay_apart)
{
    tsi_text text = { 0 };
    wanted w = { 0 };
    char name[241] = "";
    memset(name, 'g', sizeof name - 1);
    tsi_text_printf(&text, "step 1\nranks 4\nwide\ngroups %s.x 2:1\ngroups %s.y 2:2\n", name, name);
    tsi_text_printf(&text,
                    "rank 0..1\noperator a\nall_reduce over=%s.x\nall_reduce over=%s.y\n"
                    "rank 2..3\nall_reduce over=%s.x\nall_reduce over=%s.y\n",
                    name, name, name, name);
    int64_t found = check(t, text.data, NULL, &w);
    TEST_SAY(t, found == 0, "%lld: %s", (long long)found, w.all.data);
    tsi_text_release(&w.all);
    tsi_text_release(&text);
}

/* What is asked of a program is no failure of who asks, whatever the answer. */
static void check_on_rank(test *t, const char *text, const char *kind, const char *says)
{
    wanted w = { .kind = kind, .says = says };
    ts_program *program = NULL;
    int64_t count = -1;
    TEST_OK(t, ts_program_parse(text, &program));
    TEST_OK(t, ts_program_check(program, NULL, look, &w, &count));
    TEST_SAY(t, count == 1 && w.found == 1, "%lld found: %s", (long long)count, w.all.data);
    TEST_OK(t, ts_rank_status(t->me));
    tsi_text_release(&w.all);
    ts_program_destroy(program);
}

TS_TEST_RANKS(a_check_is_no_failure_of_the_rank, 1, 2)
{
    check_on_rank(t, "step 1\nranks 4\nwide\nrank 0..3\nreceive h from=-1\n", "unmet",
                  "receive h of rank 0 is with rank -1; there are 4");
    check_on_rank(t, "step 1\nranks 4\nwide\nrank 0..3\nrank 2..3\noperator a\n", "twice",
                  "rank 2 has two lists");
    check_on_rank(t, "step 1\nranks 2\nrank 0\nsend h to=1\n", "unmet", "is met by nothing");
}

/* Of a program in which each rank does something else: more kinds of ranks than are looked at
 * together. Returns what the check said; nothing may be found. */
static ts_status check_many_kinds(test *t)
{
    enum { KINDS = 70000 };
    tsi_text text = { 0 };
    wanted w = { 0 };
    ts_program *program = NULL;
    int64_t count = -1;
    tsi_text_printf(&text, "step 1\nranks %d\nwide\n", KINDS);
    for (int r = 0; r < KINDS; r++)
        tsi_text_printf(&text, "rank %d\n", r);
    TEST_OK(t, ts_program_parse(text.data, &program));
    ts_status status = ts_program_check(program, NULL, look, &w, &count);
    TEST_SAY(t, count == 0 && !w.all.data, "%lld found: %s", (long long)count, w.all.data);
    ts_program_destroy(program);
    tsi_text_release(&w.all);
    tsi_text_release(&text);
    return status;
}

TS_TEST(what_cannot_be_looked_at_is_no_finding)
{
    TEST_STATUS(t, check_many_kinds(t), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "its ranks do 70000 different things");
}

TS_TEST_RANKS(what_cannot_be_looked_at_is_said_on_the_rank, 1)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    TEST_STATUS(t, check_many_kinds(t), TS_ERR_ARG);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "its ranks do 70000 different things");
}

TS_TEST(channels_of_many_ranks_stay_apart)
{
    wanted w = { 0 };
    int64_t found = check(t,
                          "step 1\nranks 1048576\nwide\nrank 0..524287\n"
                          "send a to=+524288 channel=2147483647\nsend b to=+524288 channel=1\n"
                          "rank 524288..1048575\nreceive b from=-524288 channel=1\n"
                          "receive a from=-524288 channel=2147483647\n",
                          NULL, &w);
    TEST_SAY(t, found == 0, "%s", w.all.data);
    tsi_text_release(&w.all);
}

/* ---- differences ----------------------------------------------------------------------------- */

TS_TEST(differences_are_shown)
{
    static const struct {
        const char *a, *b, *says;
    } row[] = {
        { "step 1\nranks 16\nwide\ngroups g 2:8,2:2,2:1\n",
          "step 1\nranks 16\nwide\ngroups g 2:8,4:1\n",
          "group 0: 'groups g 2:8,2:2,2:1' and 'groups g 2:8,4:1'" },
        { "step 1\nranks 16\nwide\nrank 0..7\nrank 8..15\noperator a\n",
          "step 1\nranks 16\nwide\nrank 0..7\nrank 8..15\noperator b\n",
          "action 1 of rank 8: 'operator a' and 'operator b'" },
        { "step 1\nranks 4\ngroup g 0,1 tp\n", "step 1\nranks 4\ngroup g 0,1 dp\n", "dp'" },
        { "step 1\nranks 4\ngroup g 0,2\n", "step 1\nranks 4\ngroup g 0,3\n", "0,3'" },
        { "step 1\nranks 1\nrank 0\nholds v 8 parameter tp:R\n",
          "step 1\nranks 1\nrank 0\nholds v 8 parameter tp:S(0)\n", "tp:S(0)" },
    };
    for (size_t i = 0; i < TSI_COUNT_OF(row); i++) {
        ts_program *a = NULL, *b = NULL;
        char why[256] = "";
        if (ts_program_parse(row[i].a, &a) == TS_OK && ts_program_parse(row[i].b, &b) == TS_OK)
            (void)ts_program_differ(a, b, why, sizeof why);
        TEST_SAY(t, strstr(why, row[i].says), "%zu: '%s' %s", i, why, ts_last_error());
        ts_program_destroy(a);
        ts_program_destroy(b);
    }
}
