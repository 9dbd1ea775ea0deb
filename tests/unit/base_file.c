/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a user names: regular ones within a limit are read, everything else is a sentence and
 * never a wait (repair 33); a file is replaced whole. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tessera/data.h"
#include "tessera/model.h"
#include "tessera/plan.h"
#include "tessera/train.h"
#include "unit/data_util.h"

static void refuses(test *t, const char *path, const char *words)
{
    char *text = NULL;
    size_t length = 1;
    TEST_STATUS(t, tsi_file_read(path, 1000, &text, &length), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), words);
    TEST_CHECK(t, text == NULL && length == 0);
}

TS_TEST(file_reads_regular_files_alone)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX], *text = NULL;
    size_t length = 0;
    data_folder_make(t, folder);
    data_path(path, folder, "pipe");
    TEST_CHECK(t, mkfifo(path, 0600) == 0);
    refuses(t, path, "is not a regular file");
    refuses(t, "/dev/zero", "is not a regular file");
    refuses(t, folder, "is not a regular file");
    refuses(t, "/nowhere/at/all", "No such file");
    data_path(path, folder, "file");
    TEST_OK(t, tsi_file_replace(path, "12345", 5));
    TEST_OK(t, tsi_file_read(path, 5, &text, &length));
    TEST_EQ(t, length, 5);
    TEST_TEXT(t, text, "12345");
    tsi_free(text);
    TEST_CHECK(t, truncate(path, 1001) == 0);
    refuses(t, path, "has 1001 bytes, more than the 1000 that are sensible");
    data_folder_remove(folder);
}

/* Whatever a user can name a file for; before, each of these waited for ever, or read for ever. */
TS_TEST(file_pipes_in_every_place)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX];
    data_folder_make(t, folder);
    data_path(path, folder, "pipe");
    TEST_CHECK(t, mkfifo(path, 0600) == 0);
    const char *const files[] = { path, "/dev/zero" };
    for (int i = 0; i < 2; i++) {
        ts_tokenizer *tokenizer = NULL;
        TEST_STATUS(t, ts_tokenizer_open(files[i], &tokenizer), TS_ERR_IO);
        ts_topology topology;
        TEST_STATUS(t, ts_topology_load(files[i], &topology), TS_ERR_IO);
        ts_model_config model;
        TEST_STATUS(t, ts_model_config_read(files[i], &model), TS_ERR_IO);
        ts_train_config *config = NULL;
        TEST_OK(t, ts_train_config_create(&config));
        TEST_STATUS(t, ts_train_config_read(config, files[i]), TS_ERR_IO);
        TEST_SAYS(t, ts_last_error(), "is not a regular file");
        ts_train_config_destroy(config);
        ts_tokenize_options options = TS_INIT(ts_tokenize_options);
        options.files = &files[i];
        options.file_count = 1;
        options.prefix = folder;
        ts_tokenize_result result;
        TEST_STATUS(t, ts_tokenize_files(&options, &result), TS_ERR_IO);
        ts_loader_options loader = TS_INIT(ts_loader_options);
        loader.files = &files[i];
        loader.file_count = loader.context = loader.batch = 1;
        ts_loader *opened = NULL;
        TEST_STATUS(t, ts_loader_open(&loader, &opened), TS_ERR_IO);
    }
    data_folder_remove(folder);
}

TS_TEST(file_replace_keeps_the_old_one_on_failure)
{
    char folder[DATA_PATH_MAX], path[DATA_PATH_MAX], beside[DATA_PATH_MAX + 8], *text = NULL;
    size_t length = 0;
    data_folder_make(t, folder);
    data_path(path, folder, "file");
    TEST_OK(t, tsi_file_replace(path, "old", 3));
    snprintf(beside, sizeof beside, "%s.tmp", path);
    TEST_CHECK(t, access(beside, F_OK) != 0);
    TEST_CHECK(t, mkdir(beside, 0700) == 0); /* there is no room for the new one */
    TEST_STATUS(t, tsi_file_replace(path, "new", 3), TS_ERR_IO);
    TEST_OK(t, tsi_file_read(path, 100, &text, &length));
    TEST_TEXT(t, text, "old");
    tsi_free(text);
    TEST_STATUS(t, tsi_file_replace("/nowhere/file", "new", 3), TS_ERR_IO);
    data_folder_remove(folder);
}
