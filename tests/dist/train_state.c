/* SPDX-License-Identifier: Apache-2.0 */
/* What a run leaves in its directory and finds there again: one writer, one run in all files,
 * nothing half done, and a state that is not of this run refused with every difference named. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "dist/train_util.h"
#include "tessera/checkpoint.h"
#include "tessera/version.h"

static char *read_file(test *t, const folder *f, const char *name, size_t *length)
{
    char path[2 * FOLDER_PATH_MAX], *data = NULL;
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    TEST_OK(t, tsi_file_read(path, 1 << 24, &data, length));
    return data;
}

static void shell(test *t, const folder *f, const char *command)
{
    char line[2 * FOLDER_PATH_MAX];
    snprintf(line, sizeof line, "cd '%s' && %s", f->path, command);
    TEST_SAY(t, system(line) == 0, "%s", line);
}

static bool there(const folder *f, const char *name)
{
    char path[2 * FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    return access(path, F_OK) == 0;
}

/* Repair 27: who comes second is told, and by whom. */
TS_TEST(one_run_in_one_output)
{
    folder f = make_folder(t);
    outcome o = { .stop_at = 2 };
    TEST_OK(t, train(t, &f, "a", "[parallel]\nmesh = dp=2\n", 2, &o));
    char path[FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/a/lock", f.path);
    int lock = open(path, O_RDWR | O_CLOEXEC);
    TEST_CHECK(t, lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0);
    TEST_STATUS(t, train(t, &f, "a", "[parallel]\nmesh = dp=2\n", 2, &o), TS_ERR_STATE);
    TEST_SAYS(t, o.error, "train.output: another run (process ");
    close(lock);
    TEST_OK(t, train(t, &f, "a", "[parallel]\nmesh = dp=2\n", 2, &o));
    TEST_EQ(t, o.step_first, 2);
    remove_folder(&f);
}

/* Repair 27: lines that are torn or another run's are left out, and a file of another run too. */
TS_TEST(files_of_other_runs_are_told)
{
    static const char mesh[] = "[parallel]\nmesh = dp=2\n";
    folder f = make_folder(t);
    outcome a = { .stop_at = 3 }, b = { .stop_at = 3 }, rest = { 0 };
    TEST_OK(t, train(t, &f, "a", mesh, 2, &a));
    TEST_OK(t, train(t, &f, "b", mesh, 2, &b));
    shell(t, &f,
          "cat b/train.jsonl a/train.jsonl > c && printf '{\"step\": 3, {\"step\": 4}\\n{\"st' "
          ">> c && mv c a/train.jsonl");
    TEST_OK(t, train(t, &f, "a", mesh, 2, &rest));
    shell(t, &f,
          "test $(wc -l < a/train.jsonl) = 6 && test $(grep -o '\"run\": \"[0-9a-f]*\"' "
          "a/train.jsonl | sort -u | wc -l) = 1");
    outcome bad = { 0 };
    TEST_OK(t, train(t, &f, "b", mesh, 2, &bad));
    shell(t, &f, "cp b/state/step-6/rank-00001.safetensors a/state/step-6/rank-00001.safetensors");
    TEST_STATUS(t, train(t, &f, "a", mesh, 2, &bad), TS_ERR_IO);
    TEST_SAYS(t, bad.error, "rank-00001.safetensors: is of another save than the index beside it");
    remove_folder(&f);
}

/* Repair 28: what a killed run left under temporary names goes; what is not ours stays. */
TS_TEST(leftovers_are_removed)
{
    folder f = make_folder(t);
    outcome o = { .stop_at = 2 };
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    shell(t, &f,
          "cd a && mkdir state/step-9.0123456789abcdef.part state/step-1.0123456789abcdef.old && "
          "touch "
          "state/step-9.0123456789abcdef.part/rank-00000.safetensors "
          "state/step-1.0123456789abcdef.old/rank-00000.safetensors model/config.json.tmp "
          "model/model.safetensors.77.tmp "
          "tokens/x.tmp train.jsonl.tmp report.html.tmp mine.tmp");
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    shell(t, &f,
          "cd a && test -e mine.tmp && rm mine.tmp && test -z \"$(find . -name '*.tmp' -o "
          "-name '*.part' -o -name '*.old')\"");
    remove_folder(&f);
}

/* Repair 28: a damaged state names the older one that is whole and how to take it; then the run
 * goes on from that, bit for bit. */
TS_TEST(a_damaged_state_names_an_older_one)
{
    static const char mesh[] = "[parallel]\nmesh = dp=2\n[checkpoint]\nevery = 2\n";
    folder f = make_folder(t);
    outcome whole = { 0 }, begun = { .stop_at = 4 }, rest = { 0 };
    TEST_OK(t, train(t, &f, "whole", mesh, 2, &whole));
    TEST_OK(t, train(t, &f, "a", mesh, 2, &begun));
    shell(
        t, &f,
        "printf xxxxxxxx | dd of=a/state/step-4/rank-00001.safetensors bs=1 seek=9000 conv=notrunc "
        "2> /dev/null");
    TEST_STATUS(t, train(t, &f, "a", mesh, 2, &rest), TS_ERR_IO);
    TEST_SAYS(t, rest.error, "rank-00001.safetensors: is damaged: tensor \"");
    TEST_SAYS(t, rest.error, "; the state of step 2 is whole: remove ");
    TEST_SAYS(t, rest.error, "/state/step-4 to go on from it");
    shell(t, &f,
          "rm a/state/step-4/rank-00001.safetensors && : > a/state/step-2/rank-00000.safetensors");
    TEST_STATUS(t, train(t, &f, "a", mesh, 2, &rest), TS_ERR_IO);
    TEST_SAYS(t, rest.error, "no older state is whole: train.resume=0 starts anew");
    TEST_OK(t, train(t, &f, "b", mesh, 2, &begun));
    shell(t, &f, "rm -r b/state/step-4");
    TEST_OK(t, train(t, &f, "b", mesh, 2, &rest));
    TEST_EQ(t, rest.step_first, 2);
    same_weights(t, &f, "whole", "b");
    remove_folder(&f);
}

/* Repairs 19 and 31: another function is refused with each difference; the same one, written
 * otherwise, is taken. */
TS_TEST(states_are_compared_by_meaning)
{
    static const struct {
        const char *more, *words;
    } rows[] = {
        { "[model]\nheads = 4\n", "model.heads is 2 there and 4 here" },
        { "[model]\nrope_theta = 500\n", "model.rope_theta is 10000 there and 500 here" },
        { "[model]\nnorm_epsilon = 1e-3\n", "model.norm_epsilon is 1e-05 there and 0.001 here" },
        { "[model]\nrope_theta = 500\nnorm_epsilon = 0.5\n",
          "model.norm_epsilon is 1e-05 there and 0.5 here; model.rope_theta is 10000 there" },
        { "[model]\nhidden = 32\n",
          "model.embed_tokens.weight is f32 [260, 16] there and f32 [260, 32] here" },
        { "[model]\ndtype = f64\n",
          "model.embed_tokens.weight is f32 [260, 16] there and f64 [260, 16] here" },
        { "[optimizer]\nkind = sgd\n", "optimizer.kind is adamw there and sgd here" },
        { "[model]\nlayers = 2\n", "is missing there and" },
    };
    folder f = make_folder(t);
    outcome o = { .stop_at = 2 };
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        TEST_STATUS(t, train(t, &f, "a", rows[i].more, 1, &o), TS_ERR_STATE);
        TEST_SAYS(t, o.error, rows[i].words);
        TEST_SAYS(t, o.error, "train.resume=0 starts anew");
    }
    TEST_OK(t, train(t, &f, "a", "[parallel]\nplan = dp\n[model]\nkv_heads = 2\nhead_dim = 8\n", 1,
                     &o));
    TEST_EQ(t, o.step_first, 2);
    TEST_OK(t, train(t, &f, "a", "[optimizer]\nrate = 1e-3\n[train]\nsteps = 7\n", 1, &o));
    TEST_EQ(t, o.step_first, 6);
    remove_folder(&f);
}

/* A state of one mesh is that of any: the losses go on, and train.stop_after keeps the schedule of
 * the whole run. On the same mesh, written in the background or not, bit for bit. */
TS_TEST(a_run_goes_on_on_any_mesh)
{
    static const struct {
        const char *first, *then;
        int64_t first_ranks, then_ranks;
    } rows[] = { { "dp=2", "tp=2", 2, 2 },           { "dp=1", "dp=3", 1, 3 },
                 { "dp=2, tp=2", "dp=1", 4, 1 },     { "tp=2", "tp=2", 2, 2 },
                 { "dp=3", "dp=3", 3, 3 },           { "fsdp=2", "tp=2", 2, 2 },
                 { "dp=2, fsdp=2", "fsdp=3", 4, 3 }, { "fsdp=2, tp=2", "fsdp=2, tp=2", 4, 4 } };
    folder f = make_folder(t);
    outcome whole = { 0 };
    TEST_OK(t, train(t, &f, "whole", "[model]\ndtype = f64\n", 1, &whole));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char more[256], name[16];
        outcome begun = { 0 }, rest = { 0 }, alone = { 0 };
        snprintf(name, sizeof name, "run%zu", i);
        snprintf(more, sizeof more,
                 "[model]\ndtype = f64\n[parallel]\nmesh = %s\n[train]\nstop_after = 3\n"
                 "[checkpoint]\nevery = 1\nasync = %d\n",
                 rows[i].first, (int)(i % 2));
        TEST_OK(t, train(t, &f, name, more, rows[i].first_ranks, &begun));
        TEST_EQ(t, begun.result.step, 3);
        snprintf(more, sizeof more, "[model]\ndtype = f64\n[parallel]\nmesh = %s\n", rows[i].then);
        TEST_OK(t, train(t, &f, name, more, rows[i].then_ranks, &rest));
        TEST_EQ(t, rest.step_first, 3);
        memcpy(rest.loss, begun.loss, 4 * sizeof rest.loss[0]);
        same_losses(t, &whole, &rest, STEPS, 1e-9);
        if (strcmp(rows[i].first, rows[i].then) != 0) continue;
        TEST_OK(t, train(t, &f, "alone", more, rows[i].then_ranks, &alone));
        same_losses(t, &alone, &rest, STEPS, 0);
        same_weights(t, &f, name, "alone");
        shell(t, &f, "rm -r alone");
    }
    remove_folder(&f);
}

/* Layers of model.directory behind the model's last go through states of any mesh, and through
 * models that begin from such a state alone. */
TS_TEST(layers_beyond_are_kept_by_states)
{
    static const char *const meshes[] = { "dp=2, tp=2", "fsdp=3" };
    static const char name[] = "model.layers.2.self_attn.o_proj.weight";
    folder f = make_folder(t);
    char more[4 * FOLDER_PATH_MAX];
    shell(t, &f,
          "cp -r " TS_SOURCE_DIR "/tests/golden/models/deepseek_v3 from && sed -i "
          "'s/\"num_hidden_layers\": 3/\"num_hidden_layers\": 2/' from/config.json");
    for (int i = 0; i < 2; i++) { /* the second from a state of the first, and goes on itself */
        outcome begun = { 0 }, rest = { 0 };
        char run[] = "a";
        run[0] = (char)(run[0] + i);
        for (int part = 0; part < 2; part++) {
            snprintf(
                more, sizeof more,
                "[model]\ndirectory = %s/%s\n[parallel]\nmesh = %s\n[checkpoint]\nkeep = last 0\n"
                "every = 1\n%s",
                f.path, i ? "a/state/step-6" : "from", meshes[(i + part) % 2],
                part ? "" : "[train]\nstop_after = 2\n");
            TEST_OK(t, train(t, &f, run, more, (i + part) % 2 ? 3 : 4, part ? &rest : &begun));
        }
        TEST_EQ(t, rest.step_first, 2);
    }
    static const char *const places[] = { "from",    "a/state/step-2", "a/state/step-6",
                                          "a/model", "b/state/step-6", "b/model" };
    uint64_t hash[6] = { 0 };
    for (int i = 0; i < 6; i++) {
        char path[2 * FOLDER_PATH_MAX];
        ts_archive *archive = NULL;
        snprintf(path, sizeof path, "%s/%s", f.path, places[i]);
        TEST_OK(t, ts_archive_open(path, &archive));
        int64_t at = archive ? ts_archive_find(archive, name) : -1;
        if (at >= 0) TEST_OK(t, ts_archive_hash(archive, at, &hash[i]));
        TEST_SAY(t, at >= 0 && hash[i] == hash[0], "%s: %s", places[i],
                 at < 0 ? "is without it" : "has another");
        ts_archive_close(archive);
    }
    remove_folder(&f);
}

/* Other files of model.directory lie beside the data of states too, so that they survive every way
 * back to published weights. */
TS_TEST(files_beside_the_model_are_kept_by_states)
{
    folder f = make_folder(t);
    char more[2 * FOLDER_PATH_MAX], from[FOLDER_PATH_MAX], to[FOLDER_PATH_MAX];
    shell(t, &f,
          "cp -r " TS_SOURCE_DIR
          "/tests/golden/models/deepseek_v3 from && cd from && echo '{\"a\": 1}' > "
          "generation_config.json && echo '{}' > tokenizer_config.json && echo free > LICENSE && "
          ": > empty.txt && mkdir sub && echo '{}' > tokenizer.json");
    outcome begun = { 0 }, rest = { 0 };
    snprintf(more, sizeof more, "[model]\ndirectory = %s/from\n[parallel]\nmesh = dp=2\n", f.path);
    begun.stop_at = 2;
    TEST_OK(t, train(t, &f, "a", more, 2, &begun));
    TEST_OK(t, train(t, &f, "a", more, 2, &rest));
    snprintf(from, sizeof from, "%s/a/state/step-6", f.path);
    snprintf(to, sizeof to, "%s/published", f.path);
    ts_convert_options options = TS_INIT(ts_convert_options);
    TEST_OK(t, ts_checkpoint_convert(from, to, &options));
    shell(t, &f,
          "for d in a/model a/state/step-6 published; do for x in generation_config.json "
          "tokenizer_config.json LICENSE empty.txt; do cmp from/$x $d/$x || exit 1; done; "
          "test ! -e $d/sub -a ! -e $d/tokenizer.json || exit 1; done"); /* these are bytes */
    ts_archive *archive = NULL;
    TEST_OK(t, ts_archive_open(from, &archive));
    if (archive) TEST_OK(t, ts_archive_check_others(archive));
    ts_archive_close(archive);
    remove_folder(&f);
}

/* The index of a state tells how many tokens were seen, and who saw them. */
TS_TEST(states_tell_where_they_come_from)
{
    folder f = make_folder(t);
    outcome begun = { .stop_at = 2 }, rest = { 0 }, other = { 0 };
    char config[4][32] = { "" };
    static const char *const places[] = { "a/state/step-2", "a/state/step-6", "b/state/step-6" };
    static const char *const tokens[] = { "96", "288", "288" };
    TEST_OK(t, train(t, &f, "a", "[checkpoint]\nkeep = 0\n", 1, &begun));
    TEST_OK(t, train(t, &f, "a", "[checkpoint]\nkeep = 0\n", 1, &rest));
    TEST_OK(t, train(t, &f, "b", "[optimizer]\nrate = 2e-2\n", 1, &other));
    for (int i = 0; i < 3; i++) {
        char path[2 * FOLDER_PATH_MAX];
        ts_archive *archive = NULL;
        snprintf(path, sizeof path, "%s/%s", f.path, places[i]);
        TEST_OK(t, ts_archive_open(path, &archive));
        if (!archive) continue;
        const char *seen = ts_archive_value(archive, "tokens");
        const char *hash = ts_archive_value(archive, "config");
        const char *version = ts_archive_value(archive, "version");
        TEST_CHECK(t, seen && strcmp(seen, tokens[i]) == 0);
        TEST_CHECK(t, version && strcmp(version, ts_version()) == 0);
        TEST_CHECK(t, hash && strlen(hash) == 16);
        snprintf(config[i], sizeof config[i], "%s", hash ? hash : "");
        ts_archive_close(archive);
    }
    TEST_CHECK(t, strcmp(config[0], config[1]) == 0 && strcmp(config[1], config[2]) != 0);
    remove_folder(&f);
}

/* checkpoint.keep: the last ones, every k-th, the best. */
TS_TEST(states_are_kept_as_asked)
{
    static const struct {
        const char *keep, *left;
    } rows[] = { { "last 2", "step-5 step-6 " },
                 { "1", "step-6 " },
                 { "last 1, every 2", "step-2 step-4 step-6 " },
                 { "0", "step-1 step-2 step-3 step-4 step-5 step-6 " } };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char more[128], command[256];
        outcome o = { 0 };
        snprintf(more, sizeof more, "[checkpoint]\nevery = 1\nkeep = %s\n", rows[i].keep);
        TEST_OK(t, train(t, &f, "a", more, 1, &o));
        snprintf(command, sizeof command, "test \"$(ls a/state | tr '\\n' ' ')\" = '%s' && rm -r a",
                 rows[i].left);
        shell(t, &f, command);
    }
    outcome o = { 0 };
    TEST_OK(t, train(t, &f, "a", "[checkpoint]\nevery = 1\nkeep = last 1, best 2\n", 1, &o));
    shell(t, &f, "test $(ls a/state | wc -l) -le 3 && test -e a/state/step-6/index.json");
    TEST_STATUS(t, train(t, &f, "a", "[checkpoint]\nkeep = some\n", 1, &o), TS_ERR_ARG);
    remove_folder(&f);
}

/* Takes the place of libc's: the objects of tests are linked statically. 0: as if nobody knew. */
static int64_t disk_free;
int statvfs(const char *path, struct statvfs *out)
{
    (void)path;
    *out = (struct statvfs){ .f_frsize = 1, .f_bavail = (fsblkcnt_t)disk_free };
    out->f_blocks = disk_free ? (fsblkcnt_t)1 << 40 : 0;
    return 0;
}

/* What a run says on standard error where so many bytes are free. */
static char *said(test *t, const folder *f, const char *more, int64_t bytes, ts_status wanted)
{
    outcome o = { 0 };
    size_t length;
    char path[FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/said", f->path);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), before = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    disk_free = bytes;
    ts_status status = train(t, f, "a", more, 2, &o);
    disk_free = 0;
    dup2(before, STDERR_FILENO);
    close(before);
    close(file);
    TEST_STATUS(t, status, wanted);
    return read_file(t, f, "said", &length);
}

static int64_t bytes_under(const folder *f, const char *name)
{
    char command[2 * FOLDER_PATH_MAX];
    long long bytes = 0;
    snprintf(command, sizeof command, "cat '%s'/%s | wc -c", f->path, name);
    FILE *pipe = popen(command, "r");
    bool read = pipe && fscanf(pipe, "%lld", &bytes) == 1;
    if (pipe) pclose(pipe);
    return read ? bytes : 0;
}

/* What is saved is known before the first step: where it does not fit that is said then, not after
 * hours. A save that fails ends the run with a sentence; the state before it is there, and the run
 * goes on from it when there is room. */
TS_TEST(a_full_disk_is_told_before_the_first_step)
{
    enum { SPARE = 2 << 20 };
    folder f = make_folder(t);
    outcome o = { 0 };
    const char *more = "[parallel]\nmesh = fsdp=2\n[checkpoint]\nevery = 1\nkeep = last 2\n";
    char first[256], *text;
    snprintf(first, sizeof first, "%s[train]\nstop_after = 2\n", more);
    TEST_OK(t, train(t, &f, "a", first, 2, &o));
    int64_t state = bytes_under(&f, "a/state/step-2/*"), model = bytes_under(&f, "a/model/model*");
    TEST_CHECK(t, state > model && model > 0);
    /* Two are there; a third is written before the first goes. */
    text = said(t, &f, first, state + model + SPARE, TS_OK);
    TEST_SAY(t, text && !strstr(text, "checkpoint"), "nothing to do: %s", text);
    tsi_free(text);
    snprintf(first, sizeof first, "%s[train]\nstop_after = 3\n", more);
    text = said(t, &f, first, 1000, TS_ERR_IO);
    TEST_SAYS(t, text, "checkpoint: 1000 B are free at ");
    TEST_SAYS(t, text, "and this run is to write 1 more state of ");
    TEST_SAYS(t, text, "a save may not fit");
    TEST_SAYS(t, text, "do not fit, 1000 B are free");
    tsi_free(text);
    shell(t, &f, "test \"$(ls a/state | tr '\\n' ' ')\" = 'step-1 step-2 '");
    text = said(t, &f, more, state + model + SPARE, TS_OK);
    TEST_SAY(t, text && !strstr(text, "checkpoint"), "enough: %s", text);
    tsi_free(text);
    shell(t, &f, "test \"$(ls a/state | tr '\\n' ' ')\" = 'step-5 step-6 ' && rm -r a");
    snprintf(first, sizeof first, "%sasync = 1\n", more);
    text = said(t, &f, first, SPARE / 2, TS_ERR_IO);
    TEST_SAYS(t, text, "this run is to write 3 more states of ");
    TEST_SAYS(t, text, "do not fit, ");
    tsi_free(text);
    snprintf(first, sizeof first, "%skeep = last 1, best 2\n",
             more); /* the last is one of the best */
    text = said(t, &f, first, SPARE / 2, TS_ERR_IO);
    TEST_SAYS(t, text, "this run is to write 3 more states of ");
    tsi_free(text);
    snprintf(first, sizeof first, "%severy = 4\nkeep = 0\n", more);
    text = said(t, &f, first, SPARE / 2, TS_ERR_IO); /* 4 and 6 */
    TEST_SAYS(t, text, "this run is to write 2 more states of ");
    tsi_free(text);
    remove_folder(&f);
}

/* A state that is being written when a step is not finite is of a step before: it is there then. */
TS_TEST(a_state_under_way_outlives_the_run)
{
    static const char bad[] = "[model]\ncompute = f16\n[optimizer]\nkind = sgd\nrate = 1e6\n"
                              "[train]\nclip = 0\n[checkpoint]\nevery = 1\nasync = 1\n"
                              "[parallel]\nmesh = fsdp=2\n";
    folder f = make_folder(t);
    for (int scaled = 0; scaled < 2; scaled++) {
        outcome o = { 0 };
        char more[512];
        snprintf(more, sizeof more, "%s%s", bad,
                 scaled ? "[train]\nloss_scale_every = 9\nskips_max = 1\n" : "");
        TEST_STATUS(t, train(t, &f, "a", more, 2, &o), TS_ERR_STATE);
        shell(t, &f, "test -e a/state/step-1/index.json && test $(ls a/state | wc -l) = 1");
        shell(t, &f, "rm -r a");
    }
    remove_folder(&f);
}

/* What is written on the way is the same in a run that was stopped where it is due. */
TS_TEST(samples_and_norms_of_a_stopped_run)
{
    static const char more[] =
        "[model]\npositions = 40\n[log]\nsample = 4\nsample_every = 3\nnorms = 3\n";
    folder f = make_folder(t);
    outcome whole = { 0 }, begun = { .stop_at = 3 }, rest = { 0 };
    TEST_OK(t, train(t, &f, "whole", more, 1, &whole));
    TEST_OK(t, train(t, &f, "parts", more, 1, &begun));
    TEST_EQ(t, begun.result.step, 3);
    TEST_OK(t, train(t, &f, "parts", more, 1, &rest));
    shell(t, &f, "test $(wc -l < whole/samples.jsonl) = 2");
    shell(t, &f, "cmp whole/samples.jsonl parts/samples.jsonl");
    shell(t, &f, "cmp whole/norms.jsonl parts/norms.jsonl");
    remove_folder(&f);
}

/* Repair 19: a finished run that is run again keeps its report and its log. */
TS_TEST(a_finished_run_keeps_its_report)
{
    folder f = make_folder(t);
    outcome o = { 0 };
    size_t length = 0, again = 0;
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    char *before = read_file(t, &f, "a/report.html", &length);
    char *log = read_file(t, &f, "a/train.jsonl", &length);
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    TEST_EQ(t, o.result.step, STEPS);
    TEST_CHECK(t, o.result.loss > 0 && o.result.report[0] != '\0');
    char *after = read_file(t, &f, "a/report.html", &again);
    TEST_TEXT(t, after, before);
    char *log_after = read_file(t, &f, "a/train.jsonl", &again);
    TEST_TEXT(t, log_after, log);
    shell(t, &f, "rm a/report.html");
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    TEST_CHECK(t, there(&f, "a/report.html"));
    tsi_free(before);
    tsi_free(after);
    tsi_free(log);
    tsi_free(log_after);
    remove_folder(&f);
}
