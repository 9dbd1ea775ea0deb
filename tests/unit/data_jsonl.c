/* SPDX-License-Identifier: Apache-2.0 */
/* Documents of JSON lines: the tokens of as many text files, read in parts of any size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/test.h"
#include "tessera/data.h"

enum { DOCUMENTS = 9, ROW = 200 };

static const char *write_file(test *t, const char *folder, const char *name, const char *text)
{
    static char path[16][256];
    static int used;
    char *own = path[used++];
    snprintf(own, sizeof path[0], "%s/%s", folder, name);
    FILE *file = fopen(own, "w");
    TEST_CHECK(t, file != NULL);
    if (file) {
        fputs(text, file);
        fclose(file);
    }
    return own;
}

static ts_status tokenize(const char *const *files, int64_t count, const char *prefix,
                          int64_t part_bytes, const char *key)
{
    ts_tokenize_result result;
    ts_tokenize_options options = TS_INIT(ts_tokenize_options);
    options.files = files;
    options.file_count = count;
    options.prefix = prefix;
    options.part_bytes = part_bytes;
    options.restart = 1;
    options.json_key = key;
    return ts_tokenize_files(&options, &result);
}

static void first_row(test *t, const char *prefix, int32_t *row)
{
    ts_loader *loader = NULL;
    ts_loader_options options = TS_INIT(ts_loader_options);
    options.prefix = prefix;
    options.context = ROW;
    options.batch = 1;
    options.in_order = 1;
    TEST_OK(t, ts_loader_open(&options, &loader));
    TEST_OK(t, ts_loader_batch(loader, 0, 0, 1, row));
    ts_loader_close(loader);
}

/* Two in a row, of which nothing is written wherever a part of the file begins. */
static bool is_empty(int document)
{
    return document == 1 || document == 2;
}

TS_TEST(lines_are_documents)
{
    char folder[] = TS_BINARY_DIR "/jsonl-XXXXXX", lines[4096] = "", prefix[2][256], command[300];
    const char *files[DOCUMENTS];
    TEST_CHECK(t, mkdtemp(folder) != NULL);
    for (int i = 0; i < DOCUMENTS; i++) {
        char text[128], name[32];
        snprintf(text, sizeof text, "Fox %d said \"oh\",\n\tand ran \xc3\xa9 home.", i);
        if (is_empty(i)) text[0] = '\0';
        snprintf(name, sizeof name, "%d.txt", i);
        files[i] = write_file(t, folder, name, text);
        /* The last line has no newline, one is empty, other members do not count. */
        snprintf(text, sizeof text,
                 "%s{\"id\": %d, \"body\": \"Fox %d said \\\"oh\\\",\\n\\tand ran \\u00e9 home.\"}",
                 i == 0   ? ""
                 : i == 4 ? "\n \n"
                          : "\n",
                 i, i);
        if (is_empty(i)) snprintf(text, sizeof text, "\n{\"body\": \"\"}");
        strcat(lines, text);
    }
    const char *one[] = { write_file(t, folder, "all.jsonl", lines) };
    snprintf(prefix[0], sizeof prefix[0], "%s/texts", folder);
    snprintf(prefix[1], sizeof prefix[1], "%s/lines", folder);
    TEST_OK(t, tokenize(files, DOCUMENTS, prefix[0], 0, NULL));
    for (int64_t bytes = 64; bytes <= 1 << 20; bytes *= 8) {
        int32_t have[ROW + 1], want[ROW + 1];
        TEST_OK(t, tokenize(one, 1, prefix[1], bytes, "body"));
        first_row(t, prefix[0], want);
        first_row(t, prefix[1], have);
        TEST_CHECK(t, memcmp(have, want, sizeof have) == 0);
    }
    TEST_CHECK(t, tokenize(one, 1, prefix[1], 0, NULL) == TS_ERR_IO);
    TEST_CHECK(t, strstr(ts_last_error(), ", line 1: the object has no text \"text\"") != NULL);
    const char *bad[] = { write_file(t, folder, "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n") };
    TEST_CHECK(t, tokenize(bad, 1, prefix[1], 0, NULL) != TS_OK);
    TEST_CHECK(t, strstr(ts_last_error(), "bad.jsonl, line 2: JSON, line 1, column ") != NULL);
    const char *zeros[] = { write_file(t, folder, "zeros.jsonl", "{\"text\": \"a\"}\n??\n") };
    FILE *file = fopen(zeros[0], "r+"); /* as a file system leaves them after a crash */
    TEST_CHECK(t, file && fseek(file, 14, SEEK_SET) == 0 && fwrite("\0\0", 1, 2, file) == 2);
    TEST_CHECK(t, file && fclose(file) == 0);
    TEST_CHECK(t, tokenize(zeros, 1, prefix[1], 0, NULL) != TS_OK);
    TEST_CHECK(t, strstr(ts_last_error(), "zeros.jsonl, line 2: JSON, line 1, column 1") != NULL);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    TEST_EQ(t, system(command), 0);
}
