/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_folder.c - a directory that several write in and leave at any moment is there for all
 * who do, and gone with the last of them. */
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/thread.h"
#include "checkpoint/folder.h"
#include "unit/data_util.h"

enum { WRITERS = 4, TURNS = 500 };

typedef struct writer {
    const char *part;
    int number;
    int missing, refused; /* files that could not be made, turns that did not begin */
} writer;

/* As a rank whose save fails: its own file goes first, then the directory. */
static void *write_and_leave(void *argument)
{
    writer *me = argument;
    for (int turn = 0; turn < TURNS; turn++) {
        char path[DATA_PATH_MAX], name[16];
        int lock = -1;
        if (tsi_folder_begin(me->part, &lock) != TS_OK) {
            me->refused++;
            continue;
        }
        (void)snprintf(name, sizeof name, "%d", me->number);
        data_path(path, me->part, name);
        int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        me->missing += file < 0;
        if (file >= 0) close(file);
        unlink(path);
        tsi_folder_abandon(me->part, lock);
        close(lock);
    }
    return NULL;
}

TS_TEST(the_last_one_removes_it)
{
    char folder[DATA_PATH_MAX], part[DATA_PATH_MAX];
    writer all[WRITERS];
    pthread_t thread[WRITERS];
    data_folder_make(t, folder);
    data_path(part, folder, "x.part");
    for (int i = 0; i < WRITERS; i++) {
        all[i] = (writer){ .part = part, .number = i };
        TEST_OK(t, tsi_thread_start(&thread[i], write_and_leave, &all[i], 0));
    }
    for (int i = 0; i < WRITERS; i++) {
        pthread_join(thread[i], NULL);
        TEST_EQ(t, all[i].missing, 0);
        TEST_EQ(t, all[i].refused, 0);
    }
    TEST_CHECK(t, access(part, F_OK) != 0);
    data_folder_remove(folder);
}
