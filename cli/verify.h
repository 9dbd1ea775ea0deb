/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - what the parts of `tessera verify` share. */
#ifndef CLI_VERIFY_H
#define CLI_VERIFY_H

int cli_verify_model(int argc, char **argv);

#endif
