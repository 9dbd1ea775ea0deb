/* SPDX-License-Identifier: Apache-2.0 */
/* product_table.c - the table of algorithms as lines of text.
 *
 *   VERSION GPU KEY ALGORITHM NTH     key and algorithm in hexadecimal, blanks of the GPU as '_'
 *
 * The file is read once and looked through line by line when a product is met for the first time:
 * a few hundred lines, once a shape. */
#include "backend/cuda/product_table.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { LINE = 1024, BYTES_MAX = 200, TEXT_MAX = 8 << 20 };

static struct {
    pthread_mutex_t lock;
    bool read;
    char *text; /* of the whole file; NULL: there is none */
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void put_hex(char *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        (void)snprintf(to + 2 * i, 3, "%02x", ((const unsigned char *)from)[i]);
}

static bool get_hex(void *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned byte;
        if (!isxdigit((unsigned char)from[2 * i]) || sscanf(from + 2 * i, "%2x", &byte) != 1)
            return false;
        ((unsigned char *)to)[i] = (unsigned char)byte;
    }
    return true;
}

/* "VERSION GPU KEY ", which a line of this product begins with. */
static void head_of(const tsi_product_rank *where, const tsi_product_key *key, char *out)
{
    char gpu[sizeof where->gpu], hex[2 * sizeof *key + 1];
    memcpy(gpu, where->gpu, sizeof gpu);
    gpu[sizeof gpu - 1] = 0;
    for (char *c = gpu; *c; c++)
        if (isspace((unsigned char)*c)) *c = '_';
    put_hex(hex, key, sizeof *key);
    (void)snprintf(out, LINE, "%lld %s %s ", (long long)where->version, gpu, hex);
}

/* With the lock. */
static void read_table(void)
{
    const char *path = getenv("TESSERA_CUDA_PRODUCTS");
    if (table.read) return;
    table.read = true;
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return;
    table.text = tsi_alloc_kept(TEXT_MAX, 1);
    if (table.text) table.text[fread(table.text, 1, TEXT_MAX - 1, file)] = 0;
    (void)fclose(file);
}

bool tsi_product_table_find(const tsi_product_rank *where, const tsi_product_key *key,
                            void *algorithm, size_t bytes)
{
    char head[LINE];
    bool found = false;
    head_of(where, key, head);
    pthread_mutex_lock(&table.lock);
    read_table();
    const char *line = table.text ? strstr(table.text, head) : NULL;
    if (line) found = get_hex(algorithm, line + strlen(head), bytes);
    pthread_mutex_unlock(&table.lock);
    return found;
}

const char *tsi_product_table_text(void)
{
    pthread_mutex_lock(&table.lock);
    read_table();
    const char *text = table.text ? table.text : "";
    pthread_mutex_unlock(&table.lock);
    return text;
}

/* Who has the old text may still read it: it is left where it is. */
bool tsi_product_table_replace(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tsi_alloc_kept(bytes, 1);
    if (!copy) return false;
    memcpy(copy, text, bytes);
    pthread_mutex_lock(&table.lock);
    table.read = true;
    table.text = copy;
    pthread_mutex_unlock(&table.lock);
    return true;
}

tsi_product_tuning tsi_product_tuning_of(void)
{
    const char *text = getenv("TESSERA_CUDA_TUNE");
    if (!text || !text[0]) return TSI_TUNING_SAME_BITS;
    return strcmp(text, "off") == 0 ? TSI_TUNING_OFF : TSI_TUNING_TO_FILE;
}

void tsi_product_table_add(const tsi_product_rank *where, const tsi_product_key *key,
                           const void *algorithm, size_t bytes, int32_t nth)
{
    char head[LINE], hex[2 * BYTES_MAX + 1];
    if (bytes > BYTES_MAX) return;
    head_of(where, key, head);
    put_hex(hex, algorithm, bytes);
    FILE *file = fopen(getenv("TESSERA_CUDA_TUNE"), "a");
    if (!file) return; /* a table that cannot be written is one that is not there */
    (void)fprintf(file, "%s%s %d\n", head, hex, (int)nth);
    (void)fclose(file);
}
