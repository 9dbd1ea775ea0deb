/* SPDX-License-Identifier: Apache-2.0 */
/* html.h - pages that stand alone: one file, no network, light and dark as the reader's system
 * says.
 *
 * A page is a frame (html_begin, html_end), its data as JSON in the element "data", and a script.
 * Scripts and style sheets are lines of this program, ended by NULL, and are written as they are;
 * everything else goes through html_text. */
#ifndef CLI_HTML_H
#define CLI_HTML_H

#include "cli.h"

/* NULL: said on standard error. "-" is standard output. */
FILE *html_open(const char *command, const char *option, const char *path);
/* 0, or 1 with a sentence if something could not be written. */
int html_close(const char *command, const char *path, FILE *out);
/* Everything up to the beginning of <main>; `style` is added to the common style sheet. */
void html_begin(FILE *out, const char *title, const char *const *style);
/* The data (taken as it is; '<' cannot end the element), the script, and the end. */
void html_end(FILE *out, const ts_json_writer *data, const char *const *script);
/* The text with & < > " escaped. */
void html_text(FILE *out, const char *text);

/* Colours by number: hue in degrees; the same in the pages' script (function hue). */
double html_hue(int64_t number, int64_t count);
/* The same as "#rrggbb", 8 bytes with the end; lightness 0 to 1. */
void html_colour(int64_t number, int64_t count, double lightness, char *out);

#endif
