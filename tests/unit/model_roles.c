/* SPDX-License-Identifier: Apache-2.0 */
/* model_roles.c - the axes of a training mesh are roles (repair 17). */
#include "harness/test.h"
#include "tessera/model.h"

TS_TEST(roles_of_meshes)
{
    ts_roles r;
    TEST_OK(t, ts_roles_parse("tp=4, dp=3", &r));
    TEST_EQ(t, r.ranks, 12);
    TEST_EQ(t, r.size[TS_ROLE_TENSOR], 4);
    TEST_EQ(t, r.size[TS_ROLE_REPLICATE], 3);
    TEST_EQ(t, r.size[TS_ROLE_FSDP], 0);
    TEST_OK(t, ts_roles_parse(" replicate = 2 ,tp=1, pp=1", &r));
    TEST_EQ(t, r.ranks, 2);
    TEST_EQ(t, r.size[TS_ROLE_PIPELINE], 1);
    TEST_OK(t, ts_roles_parse("dp=*, tp=2", &r));
    TEST_EQ(t, r.ranks, 0);
    TEST_OK(t, ts_roles_parse("dp=2, tp=2 : 3 1 2 0", &r));
    TEST_EQ(t, r.ranks, 4);
}

TS_TEST(roles_that_are_none)
{
    static const struct {
        const char *mesh, *words;
        ts_status status;
    } rows[] = {
        { "ddp=4",
          "\"ddp\" is no role of an axis (pp, replicate (or dp), fsdp, cp, tp); did you "
          "mean dp?",
          TS_ERR_MESH },
        { "dp=2, replica=2", "did you mean replicate?", TS_ERR_MESH },
        { "x=2", "\"x\" is no role", TS_ERR_MESH },
        { "4", "an axis has no name", TS_ERR_MESH },
        { "dp=2, 2", "an axis has no name", TS_ERR_MESH },
        { "dp=2, replicate=2", "two axes have the role of replicate", TS_ERR_MESH },
        { "dp=", "expected a size", TS_ERR_ARG },
        { "dp=2 tp=2", "expected ',' or the end", TS_ERR_ARG },
        { "", "expected", TS_ERR_ARG },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ts_roles r;
        TEST_STATUS(t, ts_roles_parse(rows[i].mesh, &r), rows[i].status);
        TEST_SAYS(t, ts_last_error(), rows[i].words);
        TEST_EQ(t, r.ranks, 0);
    }
    TEST_STATUS(t, ts_roles_parse(NULL, NULL), TS_ERR_NULL);
}
