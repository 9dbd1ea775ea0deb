/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - command lines: a table says what is allowed, everything else is refused by name.
 *
 * Both "--name value" and "--name=value" are read. A bad value is never repaired: the sentence
 * names the option, what was expected and what was found, and the exit code is 2. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { NAMES_MAX = 64, NAME_MAX_LENGTH = 64 };

/* What follows "WORD: " at the beginning of the text, else the text. */
static const char *behind(const char *text, const char *word, size_t length)
{
    bool begins = length > 0 && strncmp(text, word, length) == 0;
    return begins && text[length] == ':' && text[length + 1] == ' ' ? text + length + 2 : text;
}

/* What the command was given beside options: a sentence may begin with one of these. */
static char *const *given;

static bool is_given(const char *word)
{
    for (size_t i = 0; given && given[i]; i++)
        if (strcmp(given[i], word) == 0) return true;
    return false;
}

/* Sentences of the library begin with what was asked for: with the command, or the option that the
 * sentence is about, that would stand there twice. */
static void say_once(const char *command, const char *text)
{
    const char *word = strrchr(command, ' '), *rest = text;
    if (word) rest = behind(rest, command, strlen(command));
    word = word ? word + 1 : command;
    if (!is_given(word)) rest = behind(rest, word, strlen(word));
    size_t option = strncmp(rest, "--", 2) == 0 ? strcspn(rest, ": ") : 0;
    if (option > 2 && strncmp(rest + option, ": ", 2) == 0) {
        fprintf(stderr, "%.*s: ", (int)option, rest);
        rest = behind(rest + option + 2, rest + 2, option - 2);
    }
    fputs(rest, stderr);
}

static void say(const char *command, const char *format, va_list arguments) TS_PRINTF(2, 0);
static void say(const char *command, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = length >= 0 ? malloc((size_t)length + 1) : NULL;
    fflush(stdout);
    fprintf(stderr, "tessera%s%s: ", command[0] != '\0' ? " " : "", command);
    if (text) (void)vsnprintf(text, (size_t)length + 1, format, arguments);
    if (text)
        say_once(command, text);
    else
        vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    free(text);
}

int cli_fail_usage(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(command, format, arguments);
    va_end(arguments);
    return 2;
}

int cli_fail(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(command, format, arguments);
    va_end(arguments);
    return 1;
}

int cli_fail_run(const char *command, ts_status status, const char *error)
{
    bool usage = status == TS_ERR_ARG || status == TS_ERR_MESH;
    return usage ? cli_fail_usage(command, "%s", error) : cli_fail(command, "%s", error);
}

int cli_refuse_run(const char *command, const char *path)
{
    char log[4096], states[4096];
    (void)snprintf(log, sizeof log, "%s/train.jsonl", path);
    (void)snprintf(states, sizeof states, "%s/state", path);
    if (access(log, F_OK) != 0 || access(states, F_OK) != 0) return -1;
    return cli_fail_usage(command,
                          "%s: is the output of a run; its model is %s/model, its states are in "
                          "%s/state",
                          path, path, path);
}

/* Edit distance of two short words, one row at a time. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LENGTH + 1], length = strlen(b);
    if (length > NAME_MAX_LENGTH || strlen(a) > NAME_MAX_LENGTH) return SIZE_MAX;
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t best = change < row[j] + 1 ? change : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[length];
}

const char *cli_nearest(const char *name, const char *const *names, size_t count)
{
    const char *nearest = NULL;
    size_t limit = strlen(name) / 3 + 1, best = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        size_t d = distance(name, names[i]);
        if (d <= limit && d < best) {
            best = d;
            nearest = names[i];
        }
    }
    return nearest;
}

bool cli_read_int(const char *text, int64_t *out)
{
    char *end = NULL;
    if (text[0] == '\0' || strchr(" \t+", text[0]) != NULL) return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0') return false;
    *out = value;
    return true;
}

bool cli_read_size(const char *text, int64_t *out)
{
    static const char letters[] = "KMGT";
    char *end = NULL;
    if (text[0] < '0' || text[0] > '9') return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0) return false;
    const char *letter =
        *end != '\0' ? strchr(letters, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    int shift = 0;
    if (letter != NULL) {
        shift = 10 * (int)(letter - letters + 1);
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B') end++;
    if (*end != '\0' || value > (INT64_MAX >> shift)) return false;
    *out = (int64_t)((uint64_t)value << shift);
    return true;
}

static const cli_option *find_option(const cli_usage *usage, const char *name, size_t length)
{
    for (const cli_option *option = usage->options; option->kind != CLI_KIND_END; option++) {
        if (strlen(option->name) == length && strncmp(option->name, name, length) == 0)
            return option;
    }
    return NULL;
}

static int fail_unknown(const cli_usage *usage, const char *argument)
{
    const char *names[NAMES_MAX];
    size_t count = 0;
    for (const cli_option *o = usage->options; o->kind != CLI_KIND_END && count < NAMES_MAX - 1;
         o++) {
        names[count++] = o->name;
    }
    names[count++] = "help";
    char name[NAME_MAX_LENGTH];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(argument, "="), argument);
    const char *bare = name + strspn(name, "-");
    const char *near = cli_nearest(bare, names, count);
    if (near != NULL) {
        return cli_fail_usage(usage->command, "unknown option \"%s\"; did you mean --%s?", name,
                              near);
    }
    return cli_fail_usage(usage->command, "unknown option \"%s\"; see tessera %s --help", name,
                          usage->command);
}

static int set_number(const cli_usage *usage, const cli_option *option, const char *text)
{
    int64_t value = 0;
    bool is_size = option->kind == CLI_KIND_SIZE;
    bool good = is_size ? cli_read_size(text, &value) : cli_read_int(text, &value);
    if (!good || value < option->low || value > option->high) {
        return cli_fail_usage(usage->command, "--%s: expected %s from %lld to %lld, found \"%s\"",
                              option->name, is_size ? "a number of bytes" : "a whole number",
                              (long long)option->low, (long long)option->high, text);
    }
    *(int64_t *)option->value = value;
    return -1;
}

static int add_item(const cli_usage *usage, const cli_option *option, const char *text)
{
    cli_list *list = option->value;
    if (list->count == CLI_LIST_MAX) {
        return cli_fail_usage(usage->command, "--%s may be given %d times at most", option->name,
                              CLI_LIST_MAX);
    }
    list->item[list->count++] = text;
    return -1;
}

static int set_value(const cli_usage *usage, const cli_option *option, const char *text)
{
    switch (option->kind) {
    case CLI_KIND_INT:
    case CLI_KIND_SIZE:
        return set_number(usage, option, text);
    case CLI_KIND_TEXT:
        *(const char **)option->value = text;
        return -1;
    case CLI_KIND_LIST:
        return add_item(usage, option, text);
    case CLI_KIND_FLAG:
    case CLI_KIND_END:
        break;
    }
    return cli_fail_usage(usage->command, "--%s takes no value, found \"%s\"", option->name, text);
}

/* What does not fit beside a long name and its values stands below them. */
static void print_option(const char *left, const char *help)
{
    enum { WIDTH = 20 };
    if (strlen(left) <= WIDTH)
        printf("  %-*s %s\n", WIDTH, left, help);
    else
        printf("  %s\n  %-*s %s\n", left, WIDTH, "", help);
}

static void print_help(const cli_usage *usage)
{
    printf("usage: tessera %s %s\n\n%s\n", usage->command, usage->arguments, usage->summary);
    printf("\noptions:\n");
    for (const cli_option *option = usage->options; option->kind != CLI_KIND_END; option++) {
        char left[NAME_MAX_LENGTH];
        (void)snprintf(left, sizeof left, "--%s %s", option->name, option->what);
        print_option(left, option->help);
    }
    print_option("--help", "this text");
    if (usage->more != NULL) printf("\n%s", usage->more);
}

/* For completion: one option a line. */
static void print_options(const cli_usage *usage)
{
    for (const cli_option *option = usage->options; option->kind != CLI_KIND_END; option++) {
        printf("--%s\n", option->name);
    }
    printf("--help\n");
}

/* Takes the option at argv[*at]; moves *at past its value. */
static int take_option(const cli_usage *usage, int argc, char **argv, int *at)
{
    const char *argument = argv[*at];
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
        print_help(usage);
        return 0;
    }
    if (strcmp(argument, "--list-options") == 0) {
        print_options(usage);
        return 0;
    }
    const char *name = argument + 2;
    size_t length = strncmp(argument, "--", 2) == 0 ? strcspn(name, "=") : 0;
    const cli_option *option = length > 0 ? find_option(usage, name, length) : NULL;
    if (option == NULL) return fail_unknown(usage, argument);
    if (name[length] == '=') return set_value(usage, option, name + length + 1);
    if (option->kind == CLI_KIND_FLAG) {
        *(bool *)option->value = true;
        return -1;
    }
    if (*at + 1 >= argc) {
        return cli_fail_usage(usage->command, "--%s needs a value: --%s %s", option->name,
                              option->name, option->what);
    }
    return set_value(usage, option, argv[++*at]);
}

int cli_parse(const cli_usage *usage, int *argc, char **argv)
{
    int kept = 1;
    bool only_positional = false;
    for (int i = 1; i < *argc; i++) {
        bool positional = only_positional || argv[i][0] != '-' || argv[i][1] == '\0';
        if (positional) {
            argv[kept++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_positional = true;
        } else {
            int code = take_option(usage, *argc, argv, &i);
            if (code >= 0) return code;
        }
    }
    *argc = kept;
    argv[kept] = NULL;
    given = argv + 1;
    return -1;
}

ts_status cli_mesh_ranks(const char *text, int64_t *ranks)
{
    ts_roles roles;
    ts_status status = ts_roles_parse(text, &roles);
    *ranks = roles.ranks;
    return status;
}

ts_mesh *cli_mesh_of_all(ts_rank *me, const char *text)
{
    ts_mesh *mesh = ts_mesh_create(me, text);
    int64_t ranks = mesh ? ts_mesh_size(mesh, NULL) : 0, all = ts_rank_count(me);
    if (mesh && ranks != all)
        ts_rank_fail(me, TS_ERR_ARG, "--mesh: \"%s\" has %lld ranks, this job has %lld", text,
                     (long long)ranks, (long long)all);
    return ts_rank_status(me) == TS_OK ? mesh : NULL;
}

int cli_check_topology(const char *command, const char *name)
{
    ts_topology known;
    if (name == NULL || strcmp(name, "auto") == 0) return -1;
    if (ts_topology_load(name, &known) == TS_OK) return -1;
    return cli_fail_usage(command, "--topology: %s", ts_last_error());
}

bool cli_recompute_parse(const char *word, ts_recompute *what, int64_t *every)
{
    static const char *const ways[] = { "none", "full", "select" }; /* as ts_recompute */
    char *end;
    *every = 1;
    for (int i = 0; i < 3; i++) {
        *what = (ts_recompute)i;
        if (strcmp(word, ways[i]) == 0) return true;
    }
    *what = TS_RECOMPUTE_FULL;
    *every = word[0] >= '1' && word[0] <= '9' ? strtoll(word, &end, 10) : 0;
    return *every > 0 && *every <= INT32_MAX && *end == '\0';
}

bool cli_mesh_has_units(const ts_mesh *mesh)
{
    return ts_mesh_axis(mesh, "fsdp") >= 0 || ts_mesh_axis(mesh, "replicate") >= 0;
}
