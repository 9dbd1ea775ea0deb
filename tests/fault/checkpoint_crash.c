/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that are disturbed: killed at every system call that changes the disk, with writes torn and
 * lost; calls that fail; a directory that vanishes; a second writer; bytes that change. What can be
 * loaded afterwards is the old checkpoint or the new one, whole, and nothing else. */
#include <sys/resource.h>
#include <sys/wait.h>

#include "fault/disk.h"
#include "harness/test.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

enum { RANKS = 2, ROWS = 70, COLUMNS = 90, CALLS_MAX = 400 };
enum { OUTCOME_OLD = 10, OUTCOME_NEW = 11, OUTCOME_WRONG = 12, OUTCOME_REFUSED = 13 };

/* ---- what is saved --------------------------------------------------------------------------- */

typedef struct job {
    const char *path;
    double value; /* of every element */
    bool load, again;
    int32_t background, copies;
    double found; /* rank 0: the one value that was loaded; NaN: several */
    ts_status status;
} job;

static ts_state *make_state(ts_rank *me, double value, ts_tensor **tensor)
{
    ts_mesh *mesh = ts_mesh_create(me, ts_rank_count(me) == RANKS ? "dp=2" : "dp=1");
    ts_state *state = ts_state_create(mesh);
    tensor[0] = ts_full(value, mesh, TS_DTYPE_F32, TS_SHAPE(ROWS, COLUMNS), "S(0)");
    tensor[1] = ts_full(value, mesh, TS_DTYPE_F64, TS_SHAPE(COLUMNS), "R");
    tensor[2] = ts_full(value, mesh, TS_DTYPE_BF16, TS_SHAPE_SCALAR, "R");
    (void)ts_state_add_tensor(state, "a", tensor[0]);
    (void)ts_state_add_tensor(state, "b", tensor[1]);
    (void)ts_state_add_tensor(state, "c", tensor[2]);
    (void)ts_state_set(state, "note", "text");
    ts_mesh_release(mesh);
    return state;
}

static double value_of(ts_tensor **tensor)
{
    double low = 0, high = 0, least = 1e9, most = -1e9;
    for (int i = 0; i < 3; i++) {
        ts_tensor *x = ts_cast(tensor[i], TS_DTYPE_F64);
        (void)ts_tensor_item(ts_amin(x, NULL, 0, 0), &low);
        (void)ts_tensor_item(ts_amax(x, NULL, 0, 0), &high);
        least = low < least ? low : least;
        most = high > most ? high : most;
    }
    return least == most ? least : 0.0 / 0.0;
}

static ts_status work(ts_rank *me, void *argument)
{
    job *j = argument;
    ts_scope scope = ts_scope_open(me, NULL);
    ts_tensor *tensor[3];
    ts_state *state = make_state(me, j->load ? -1 : j->value, tensor);
    ts_save_options options = TS_INIT(ts_save_options);
    options.background = j->background;
    options.copies = j->copies;
    ts_status status = j->load ? ts_checkpoint_load(state, j->path, NULL)
                               : ts_checkpoint_save(state, j->path, &options);
    if (status == TS_OK) status = ts_state_wait(state);
    double found = status == TS_OK ? value_of(tensor) : -2;
    if (ts_rank_index(me) == 0) j->found = found;
    ts_state_destroy(state);
    ts_scope_close(scope);
    return status;
}

static ts_status run(job *j, int64_t ranks, char *error, size_t size)
{
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = ranks, .timeout_ms = 20000
    };
    return j->status = ts_launch_with(&options, work, j, error, size);
}

/* ---- processes ------------------------------------------------------------------------------- */

typedef struct trial {
    char root[512], path[600];
    disk_mode mode;
    int64_t at;
    int error;
    uint64_t seed;
    int32_t background;
    char words[256]; /* of a failure */
} trial;

/* In a process of its own; the exit code: 0 saved, 3 failed with a sentence; killed: -9. */
static int save_in_child(trial *tr, double value)
{
    pid_t child = fork();
    if (child == 0) {
        char error[1024] = "";
        job j = { .path = tr->path, .value = value, .background = tr->background };
        snprintf(disk.vanish, sizeof disk.vanish, "'%s'*.part", tr->path);
        disk_arm(tr->mode, tr->at, tr->error, tr->seed, tr->root);
        ts_status status = run(&j, RANKS, error, sizeof error);
        bool reached = disk.count >= tr->at;
        disk.mode = DISK_PLAIN;
        if (status != TS_OK && error[0] == '\0') _exit(4);
        _exit(status != TS_OK ? 3 : reached ? 0 : 5);
    }
    int code = 0;
    waitpid(child, &code, 0);
    return WIFSIGNALED(code) ? -WTERMSIG(code) : WEXITSTATUS(code);
}

/* What another mesh finds there: OUTCOME_*. Then a save without disturbance must leave one
 * directory and nothing beside it. */
static int load_in_child(const trial *tr, double old, double new)
{
    pid_t child = fork();
    if (child == 0) {
        char error[1024] = "", command[1200];
        job j = { .path = tr->path, .load = true };
        ts_status status = run(&j, 1, error, sizeof error);
        int outcome = status != TS_OK  ? OUTCOME_REFUSED
                      : j.found == old ? OUTCOME_OLD
                      : j.found == new ? OUTCOME_NEW
                                       : OUTCOME_WRONG;
        if (outcome == OUTCOME_REFUSED) fprintf(stderr, "    %s\n", error);
        job after = { .path = tr->path, .value = 3 };
        if (run(&after, RANKS, error, sizeof error) != TS_OK) {
            fprintf(stderr, "    the save after it: %s\n", error);
            outcome = OUTCOME_WRONG;
        }
        snprintf(command, sizeof command, "test \"$(ls '%s')\" = checkpoint", tr->root);
        if (system(command) != 0) outcome = OUTCOME_WRONG;
        _exit(outcome);
    }
    int code = 0;
    waitpid(child, &code, 0);
    return WIFEXITED(code) ? WEXITSTATUS(code) : OUTCOME_WRONG;
}

static void make_root(test *t, trial *tr)
{
    snprintf(tr->root, sizeof tr->root, "%s/crash-XXXXXX", TS_BINARY_DIR);
    TEST_CHECK(t, mkdtemp(tr->root) != NULL);
    snprintf(tr->path, sizeof tr->path, "%s/checkpoint", tr->root);
}

static void remove_root(const trial *tr)
{
    char command[700];
    snprintf(command, sizeof command, "rm -rf '%s'", tr->root);
    if (system(command) != 0) fprintf(stderr, "%s stays\n", tr->root);
}

/* The old checkpoint is there, with values 1. */
static void begin(test *t, trial *tr)
{
    trial plain = *tr;
    plain.mode = DISK_PLAIN;
    plain.at = 0;
    plain.background = 0;
    remove_root(tr);
    TEST_CHECK(t, DISK_REAL(mkdir)(tr->root, 0777) == 0);
    TEST_EQ(t, save_in_child(&plain, 1), 0);
}

static bool is_all(void)
{
    return getenv("TEST_ALL") != NULL;
}

/* Disturbs call 1, 2, 3 ... of a save over an old checkpoint, until the save ends undisturbed. */
static void disturb_each(test *t, trial *tr, int64_t step)
{
    make_root(t, tr);
    int64_t n = 1;
    for (; n < CALLS_MAX && !test_failed(t); n += step) {
        begin(t, tr);
        tr->at = n;
        tr->seed = t->seed + (uint64_t)n;
        int code = save_in_child(tr, 2);
        TEST_SAY(t, code == 0 || code == 3 || code == 5 || code == -SIGKILL,
                 "call %lld: the save ended with %d", (long long)n, code);
        int outcome = load_in_child(tr, 1, 2);
        bool good = code == 0 || code == 5 ? outcome == OUTCOME_NEW
                                           : outcome == OUTCOME_NEW || outcome == OUTCOME_OLD;
        TEST_SAY(t, good,
                 "call %lld: the save ended with %d, then the loading with %d (old %d, new %d)",
                 (long long)n, code, outcome, OUTCOME_OLD, OUTCOME_NEW);
        if (code == 5) break; /* there is no such call */
    }
    TEST_SAY(t, n > 20 && n < CALLS_MAX, "%lld calls", (long long)n);
    remove_root(tr);
}

TS_TEST_LONG(killed_at_every_call, 600)
{
    trial tr = { .mode = DISK_KILL };
    disturb_each(t, &tr, 1);
}

TS_TEST_LONG(killed_in_torn_writes, 600)
{
    trial tr = { .mode = DISK_TORN, .background = 1 };
    disturb_each(t, &tr, is_all() ? 1 : 3);
}

TS_TEST_LONG(calls_that_fail, 600)
{
    static const int errors[] = { ENOSPC, EIO, EROFS, EACCES };
    for (size_t i = 0; i < (is_all() ? 4 : 2); i++) {
        trial tr = { .mode = DISK_FAIL, .error = errors[i], .background = (int32_t)(i % 2) };
        disturb_each(t, &tr, is_all() ? 1 : 3);
    }
}

TS_TEST_LONG(a_directory_that_vanishes, 600)
{
    trial tr = { .mode = DISK_VANISH };
    disturb_each(t, &tr, is_all() ? 1 : 4);
}

/* A limit on the size of files: an error with the file's name, and the old one stays. */
TS_TEST(files_that_may_not_grow)
{
    trial tr = { .mode = DISK_PLAIN };
    make_root(t, &tr);
    begin(t, &tr);
    pid_t child = fork();
    if (child == 0) {
        char error[1024] = "";
        struct rlimit limit = { 5000, 5000 };
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        job j = { .path = tr.path, .value = 2 };
        ts_status status = run(&j, RANKS, error, sizeof error);
        _exit(status == TS_ERR_IO && strstr(error, "rank-0000") ? 3 : 4);
    }
    int code = 0;
    waitpid(child, &code, 0);
    TEST_CHECK(t, WIFEXITED(code) && WEXITSTATUS(code) == 3);
    TEST_EQ(t, load_in_child(&tr, 1, 2), OUTCOME_OLD);
    remove_root(&tr);
}

/* Everything of a checkpoint, read without ranks: 1 as it was, 0 refused, -1 other numbers. */
static int read_all(const char *path, double value)
{
    ts_archive *archive = NULL;
    int result =
        ts_archive_open(path, &archive) == TS_OK && ts_archive_check_others(archive) == TS_OK;
    static const char *const names[] = { "a", "b", "c" };
    static double numbers[ROWS * COLUMNS];
    for (int i = 0; result == 1 && i < 3; i++) {
        ts_archive_tensor tensor;
        int64_t index = ts_archive_find(archive, names[i]);
        if (index < 0) {
            result = -1;
            break;
        }
        ts_archive_tensor_at(archive, index, &tensor);
        int64_t count = ts_shape_count(&tensor.meta.shape);
        if (ts_archive_read(archive, index, 0, count, TS_DTYPE_F64, numbers) != TS_OK) result = 0;
        for (int64_t k = 0; result == 1 && k < count; k++)
            if (numbers[k] != value) result = -1;
    }
    ts_archive_close(archive);
    return result;
}

/* Two processes save into one place: each ends well or is told of the other. */
TS_TEST(two_writers)
{
    trial tr = { .mode = DISK_PLAIN };
    make_root(t, &tr);
    for (int round = 0; round < (is_all() ? 100 : 8); round++) {
        begin(t, &tr);
        pid_t child[2];
        for (int i = 0; i < 2; i++) {
            child[i] = fork();
            if (child[i] != 0) continue;
            char error[1024] = "";
            job j = { .path = tr.path, .value = 4 + i };
            ts_status status = run(&j, RANKS, error, sizeof error);
            bool told = status == TS_ERR_STATE || status == TS_ERR_IO;
            if (status != TS_OK && !told) fprintf(stderr, "    %s\n", error);
            _exit(status == TS_OK ? 0 : told ? 3 : 4);
        }
        int code[2], good = 0;
        for (int i = 0; i < 2; i++) {
            waitpid(child[i], &code[i], 0);
            TEST_CHECK(t, WIFEXITED(code[i]) && WEXITSTATUS(code[i]) != 4);
            good += WIFEXITED(code[i]) && WEXITSTATUS(code[i]) == 0;
        }
        bool known = read_all(tr.path, 4) == 1 || read_all(tr.path, 5) == 1 ||
                     (good == 0 && read_all(tr.path, 1) == 1);
        TEST_SAY(t, known, "round %d: other numbers", round);
    }
    remove_root(&tr);
}

/* ---- bytes that change ----------------------------------------------------------------------- */

/* Flips a byte of each file, and all of them in turn if asked; counts what was repaired. */
static int64_t flip_bytes(test *t, const trial *tr, const char *name, int64_t step)
{
    char path[700];
    int64_t repaired = 0;
    snprintf(path, sizeof path, "%s/%s", tr->path, name);
    FILE *file = fopen(path, "r+b");
    TEST_SAY(t, file != NULL, "%s", path);
    if (!file) return 0;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    for (long at = 0; at < size && !test_failed(t); at += (long)step) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file), other = byte ^ (1 + (int)test_random_below(t, 255));
        for (int pass = 0; pass < 2; pass++) {
            fseek(file, at, SEEK_SET);
            fputc(pass == 0 ? other : byte, file);
            fflush(file);
            int result = read_all(tr->path, 1);
            TEST_SAY(t, pass == 0 ? result >= 0 : result == 1, "%s, byte %ld, %02x for %02x: %d",
                     name, at, other, byte, result);
            repaired += pass == 0 && result == 1;
            if (at % 64 != 0 && pass == 0) { /* reading it back whole is not asked every time */
                fseek(file, at, SEEK_SET);
                fputc(byte, file);
                fflush(file);
                break;
            }
        }
    }
    fclose(file);
    return repaired;
}

static void flip_all(test *t, int32_t copies)
{
    static const char *const files[] = { "index.json", "rank-00000.safetensors",
                                         "rank-00001.safetensors" };
    trial tr = { .mode = DISK_PLAIN };
    make_root(t, &tr);
    char error[1024] = "";
    job j = { .path = tr.path, .value = 1, .copies = copies };
    TEST_OK(t, run(&j, RANKS, error, sizeof error));
    for (int i = 0; i < 3; i++) {
        int64_t step = is_all() ? 1 : 37;
        int64_t repaired = flip_bytes(t, &tr, files[i], step);
        /* Without copies nothing can be repaired. */
        if (copies == 1) TEST_EQ(t, repaired, 0);
    }
    remove_root(&tr);
}

TS_TEST_LONG(every_byte_counts, 1200)
{
    flip_all(t, 1);
}

TS_TEST_LONG(copies_repair, 1200)
{
    flip_all(t, 2);
    /* A file that is gone: what both ranks held is read from the other. */
    trial tr = { .mode = DISK_PLAIN };
    make_root(t, &tr);
    char error[1024] = "", file[700];
    job j = { .path = tr.path, .value = 1, .copies = 2 };
    TEST_OK(t, run(&j, RANKS, error, sizeof error));
    snprintf(file, sizeof file, "%s/rank-00001.safetensors", tr.path);
    for (int i = 0; i < 2; i++) {
        ts_archive *archive = NULL;
        double numbers[COLUMNS];
        if (i == 1) TEST_EQ(t, unlink(file), 0);
        TEST_OK(t, ts_archive_open(tr.path, &archive));
        TEST_OK(t, ts_archive_read(archive, ts_archive_find(archive, "b"), 0, COLUMNS, TS_DTYPE_F64,
                                   numbers));
        ts_archive_close(archive);
        TEST_CHECK(t, numbers[0] == 1 && numbers[COLUMNS - 1] == 1);
    }
    TEST_EQ(t, read_all(tr.path, 1), 0); /* "a" was cut: there was one holder of each half */
    remove_root(&tr);
}
