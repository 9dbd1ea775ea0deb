# SPDX-License-Identifier: Apache-2.0
# A file as an array of C:  cmake -DIN=file -DOUT=file.c -DNAME=symbol -P embed.cmake
# The assembler reads the bytes: as numbers in C, megabytes of them take seconds, twice.
file(WRITE ${OUT} "extern const unsigned char ${NAME}[];\n"
  "__asm__(\".section .rodata\\n.balign 16\\n.global ${NAME}\\n.hidden ${NAME}\\n.type ${NAME}, %object\\n\"\n"
  "        \"${NAME}:\\n.incbin \\\"${IN}\\\"\\n.size ${NAME}, . - ${NAME}\\n.previous\\n\");\n")
