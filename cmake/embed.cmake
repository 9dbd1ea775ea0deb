# SPDX-License-Identifier: Apache-2.0
# A file as an array of C:  cmake -DIN=file -DOUT=file.c -DNAME=symbol -P embed.cmake
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "extern const unsigned char ${NAME}[];\n"
  "_Alignas(16) const unsigned char ${NAME}[] = {\n${bytes}};\n")
