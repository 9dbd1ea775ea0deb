/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - what the parts of `tessera verify` share. */
#ifndef CLI_VERIFY_H
#define CLI_VERIFY_H

/* The text of a plan file, which the caller frees; NULL: the argument is no file (a plan's name, or
 * NULL). */
char *cli_plan_file(const char *argument);
int cli_verify_model(int argc, char **argv);

#endif
