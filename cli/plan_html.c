/* SPDX-License-Identifier: Apache-2.0 */
/* plan_html.c - the page of a plan. */
#include "html.h"
#include "plan.h"

int plan_write_html(const plan_case *c, const char *path)
{
    (void)c;
    FILE *out = html_open("plan", "html", path);
    if (out == NULL) return 1;
    return html_close("plan", path, out);
}
