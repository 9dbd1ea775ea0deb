/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h - reading UTF-8 that may be damaged, the byte alphabet of GPT-2, and normal form C.
 *
 * A character is a well-formed sequence (no surrogates, no overlong forms, at most U+10FFFF) or,
 * where there is none, a single byte: every text has exactly one division into characters. */
#ifndef TSI_DATA_UTF8_H
#define TSI_DATA_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum { TSI_UTF8_BAD = 0x110000 }; /* the code of a byte that belongs to no sequence */

/* Code and length in bytes of the character at text; length > 0 bytes are there. */
uint32_t tsi_utf8_read_long(const char *text, size_t length, size_t *used);
static inline uint32_t tsi_utf8_read(const char *text, size_t length, size_t *used)
{
    uint32_t c = (unsigned char)text[0];
    *used = 1;
    return c < 0x80 ? c : tsi_utf8_read_long(text, length, used);
}
/* Writes the code (at most U+10FFFF) and returns how many bytes it took, 1 to 4. */
size_t tsi_utf8_write(char *text, uint32_t code);
/* How many bytes from the start are well-formed. */
size_t tsi_utf8_valid(const char *text, size_t length);
bool tsi_is_space(uint32_t code); /* Unicode White_Space */

/* GPT-2 spells each byte as a printable character: itself, or U+0100 and up. */
uint32_t tsi_byte_letter(unsigned char byte);
int tsi_letter_byte(uint32_t letter); /* -1: no such letter */

/* Normal form C. Returns false, without touching out, if the text is in it already by a glance;
 * otherwise appends it to out. Bytes that are not UTF-8 stay where they are. */
bool tsi_nfc(const char *text, size_t length, tsi_text *out);

#endif
