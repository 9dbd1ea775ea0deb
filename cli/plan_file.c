/* SPDX-License-Identifier: Apache-2.0 */
/* plan_file.c - a plan of placements given as a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "verify.h"

char *cli_plan_file(const char *argument)
{
    struct stat info;
    if (!argument || stat(argument, &info) != 0 || !S_ISREG(info.st_mode)) return NULL;
    FILE *file = fopen(argument, "rb");
    char *text = file ? calloc(1, (size_t)info.st_size + 1) : NULL;
    if (text && fread(text, 1, (size_t)info.st_size, file) != (size_t)info.st_size) {
        free(text);
        text = NULL;
    }
    if (file) fclose(file);
    return text;
}
