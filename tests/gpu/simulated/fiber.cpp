/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.cpp - the switch of fiber.h: what a call keeps goes to one stack and comes from another. */
#include "fiber.h"

#if defined(__x86_64__) && !defined(SIMULATED_LONGJMP)
asm(".text\n"
    ".globl simulated_switch\n"
    ".hidden simulated_switch\n"
    ".type simulated_switch, @function\n"
    "simulated_switch:\n"
    "    endbr64\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size simulated_switch, . - simulated_switch\n");
#endif
