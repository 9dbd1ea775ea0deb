/* SPDX-License-Identifier: Apache-2.0 */
/* op_list.c - `tessera op --list`: the table of operators, as a table, JSON or docs/ops.md. */
#include <stdlib.h>
#include <string.h>

#include "op.h"

enum { LINE_MAX_LENGTH = 4096 };

/* "f64 f32 bf16 ..." of the accepted dtypes; "all". */
static const char *dtypes_text(uint32_t dtypes, char *out, size_t size)
{
    size_t used = 0;
    uint32_t all = (1u << TS_DTYPE_COUNT) - 2;
    if ((dtypes & all) == all) return "all";
    out[0] = '\0';
    for (int d = 1; d < TS_DTYPE_COUNT && used < size; d++)
        if (dtypes >> d & 1u)
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? " " : "",
                                     ts_dtype_name((ts_dtype)d));
    return out;
}

static const char *gradient_text(const ts_op_about *about)
{
    return about->has_gradient > 0 ? "yes" : about->has_gradient < 0 ? "-" : "no";
}

static const char *inputs_text(const ts_op_about *about, char *out, size_t size)
{
    if (about->input_min == about->input_max)
        (void)snprintf(out, size, "%d", about->input_min);
    else
        (void)snprintf(out, size, "%d-%d", about->input_min, about->input_max);
    return out;
}

static int list_table(void)
{
    static const char *const names[] = { "operator",   ">in",        ">out", "grad",
                                         "attributes", "algorithms", "what", NULL };
    cli_table table;
    cli_table_begin(&table, names);
    for (int32_t i = 0; i < ts_op_count(); i++) {
        ts_op_about about = { .struct_size = sizeof about };
        char text[LINE_MAX_LENGTH];
        if (ts_op_about_at(i, &about) != TS_OK) continue;
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s%s", about.name, about.has_in_place ? " (_)" : "");
        cli_table_cell(&table, 1, "%s", inputs_text(&about, text, sizeof text));
        cli_table_cell(&table, 2, "%d", about.output_count);
        cli_table_cell(&table, 3, "%s", gradient_text(&about));
        (void)ts_op_attributes_text(i, text, sizeof text);
        cli_table_cell(&table, 4, "%s", text);
        (void)ts_op_algorithms_text(i, text, sizeof text);
        cli_table_cell(&table, 5, "%s", text);
        cli_table_cell(&table, 6, "%s", about.what);
    }
    cli_table_print(&table, stdout);
    cli_table_release(&table);
    return 0;
}

/* Rules without the first (all R), joined; `|` would end a cell of a table. */
static void print_rules(int32_t index)
{
    size_t length = ts_op_rules_text(index, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL) return;
    (void)ts_op_rules_text(index, text, length + 1);
    printf("- rules:");
    int count = 0;
    for (char *line = text, *next; *line != '\0'; line = next, count++) {
        next = line + strcspn(line, "\n");
        if (*next != '\0') *next++ = '\0';
        if (count > 0 || strstr(line, "->") == NULL) printf("%s `%s`", count > 1 ? "," : "", line);
    }
    printf("%s\n", count > 0 ? "" : " from the whole layout");
    free(text);
}

/* How it is called from C: its functions, or by its name. */
static void print_calls(const ts_op_about *about)
{
    if (about->function != NULL)
        printf("- call: `%s`", about->function);
    else
        printf("- call: `ts_op_find(me, \"%s\")`", about->name);
    if (about->has_in_place && about->function_in_place != NULL)
        printf("; in place: `%s`", about->function_in_place);
    else if (about->has_in_place)
        printf("; in place: `ts_op_find(me, \"%s_\")`", about->name);
    printf("\n");
}

static void print_section(int32_t index, const ts_op_about *about)
{
    char text[LINE_MAX_LENGTH], inputs[32];
    printf("\n## %s\n\n%s.\n\n", about->name, about->what);
    printf("- inputs: %s, outputs: %d", inputs_text(about, inputs, sizeof inputs),
           about->output_count);
    if (about->dims != NULL) printf(", dims: `%s`", about->dims);
    if (about->is_view) printf(", a view");
    if (about->is_random) printf(", random");
    if (about->is_host) printf(", the result is the host's");
    printf("\n");
    print_calls(about);
    printf("- dtypes: %s; gradient: %s\n", dtypes_text(about->dtypes, text, sizeof text),
           about->has_gradient > 0   ? "yes"
           : about->has_gradient < 0 ? "none by nature"
                                     : "no");
    if (ts_op_attributes_text(index, text, sizeof text) > 0) printf("- attributes: `%s`\n", text);
    if (ts_op_algorithms_text(index, text, sizeof text) > 0) printf("- algorithms: %s\n", text);
    print_rules(index);
}

static int list_markdown(void)
{
    printf("# Operators\n\n"
           "Made by `tessera op --list --markdown` from the operator table; do not edit.\n\n"
           "%d operators. The rules are those of one mesh axis for a small sampled call, beside "
           "all-R,\n"
           "which always holds: roles of the inputs, then of the outputs. `docs/rules.md` says how "
           "they\n"
           "are derived; `tessera op NAME --mesh ... --in ...` shows what is chosen for a call.\n\n"
           "Every operator, form in place and attribute can be called by name: `ts_op_find` and\n"
           "`ts_op_call` (`tessera/op_call.h`). \"call\" says where there is a function too.\n",
           ts_op_count());
    for (int32_t i = 0; i < ts_op_count(); i++) {
        ts_op_about about = { .struct_size = sizeof about };
        if (ts_op_about_at(i, &about) == TS_OK) print_section(i, &about);
    }
    printf(
        "\n# List forms\n\n"
        "Over lists of tensors of any layouts (`tessera/op_list.h`); legality is decided for the "
        "whole\nlist before anything is moved or written. In place, or into new tensors.\n\n");
    for (int32_t i = 0; ts_list_form_name(i) != NULL; i++)
        printf("- `%s`: %s\n", ts_list_form_name(i), ts_list_form_what(i));
    return 0;
}

static int list_json(void)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '[');
    for (int32_t i = 0; i < ts_op_count(); i++) {
        ts_op_about about = { .struct_size = sizeof about };
        char text[LINE_MAX_LENGTH];
        if (ts_op_about_at(i, &about) != TS_OK) continue;
        ts_json_put_open(&json, '{');
        ts_json_put_member_text(&json, "op", about.name);
        ts_json_put_member_text(&json, "what", about.what);
        ts_json_put_member_int(&json, "inputs_min", about.input_min);
        ts_json_put_member_int(&json, "inputs_max", about.input_max);
        ts_json_put_member_int(&json, "outputs", about.output_count);
        ts_json_put_member_text(&json, "gradient", gradient_text(&about));
        ts_json_put_member_bool(&json, "in_place", about.has_in_place != 0);
        ts_json_put_member_text(&json, "function", about.function);
        ts_json_put_member_text(&json, "function_in_place", about.function_in_place);
        ts_json_put_member_text(&json, "dtypes", dtypes_text(about.dtypes, text, sizeof text));
        (void)ts_op_attributes_text(i, text, sizeof text);
        ts_json_put_member_text(&json, "attributes", text);
        (void)ts_op_algorithms_text(i, text, sizeof text);
        ts_json_put_member_text(&json, "algorithms", text);
        (void)ts_op_rules_text(i, text, sizeof text);
        ts_json_put_member_text(&json, "rules", text);
        ts_json_put_close(&json, '}');
    }
    ts_json_put_close(&json, ']');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

int op_list(bool json, bool markdown)
{
    return json ? list_json() : markdown ? list_markdown() : list_table();
}
