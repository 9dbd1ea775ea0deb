/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.c - characters of UTF-8 texts and the byte alphabet. */
#include "data/utf8.h"

#include <string.h>

/* Lead byte to: bytes of the sequence and the bounds of its second byte, which exclude overlong
 * forms, surrogates and codes above U+10FFFF. Returns 0 for a byte that leads nothing. */
static size_t lead_of(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

uint32_t tsi_utf8_read_long(const char *text, size_t length, size_t *used)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned char low, high;
    *used = 1;
    if (p[0] < 0x80) return p[0];
    size_t count = lead_of(p[0], &low, &high);
    if (count == 0 || count > length || p[1] < low || p[1] > high) return TSI_UTF8_BAD;
    uint32_t code = p[0] & (0x7Fu >> count);
    for (size_t i = 1; i < count; i++) {
        if ((p[i] & 0xC0) != 0x80) return TSI_UTF8_BAD;
        code = code << 6 | (p[i] & 0x3Fu);
    }
    *used = count;
    return code;
}

size_t tsi_utf8_write(char *text, uint32_t code)
{
    unsigned char *p = (unsigned char *)text;
    if (code < 0x80) {
        p[0] = (unsigned char)code;
        return 1;
    }
    size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--) {
        p[i] = (unsigned char)(0x80 | (code & 0x3F));
        code >>= 6;
    }
    p[0] = (unsigned char)((0xF00u >> count & 0xF0) | code);
    return count;
}

size_t tsi_utf8_valid(const char *text, size_t length)
{
    size_t at = 0, used;
    while (at < length) {
        uint64_t eight;
        if (length - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        if (tsi_utf8_read(text + at, length - at, &used) == TSI_UTF8_BAD) break;
        at += used;
    }
    return at;
}

bool tsi_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Bytes that are spelled as themselves: 21..7E, A1..AC, AE..FF. The others, in order, are the
 * letters U+0100 .. U+0143: 00..20, 7F..A0, AD. */
uint32_t tsi_byte_letter(unsigned char byte)
{
    if (byte <= 0x20) return 0x100u + byte;
    if (byte >= 0x7F && byte <= 0xA0) return 0x121u + (byte - 0x7Fu);
    if (byte == 0xAD) return 0x143u;
    return byte;
}

int tsi_letter_byte(uint32_t letter)
{
    if (letter >= 0x100 && letter <= 0x120) return (int)(letter - 0x100);
    if (letter >= 0x121 && letter <= 0x142) return (int)(letter - 0x121 + 0x7F);
    if (letter == 0x143) return 0xAD;
    if (letter > 0xFF) return -1;
    return tsi_byte_letter((unsigned char)letter) == letter ? (int)letter : -1;
}
