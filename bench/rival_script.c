/* SPDX-License-Identifier: Apache-2.0 */
/* rival_script.c - asks a script of bench/rival, line by line. */
#include "rival_script.h"

#include <string.h>

void bench_rival_ask(const char *command, bench_answer_fn fn, void *context)
{
    char line[1024];
    FILE *rival = popen(command, "r");
    while (rival != NULL && fgets(line, sizeof line, rival) != NULL) {
        ts_json_document *document = NULL;
        if (ts_json_parse("rival", line, strlen(line), &document) == TS_OK)
            fn(context, ts_json_root(document));
        ts_json_release(document);
    }
    if (rival != NULL) (void)pclose(rival);
}
