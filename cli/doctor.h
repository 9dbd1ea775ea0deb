/* SPDX-License-Identifier: Apache-2.0 */
/* doctor.h - the parts of `tessera doctor`. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "cli.h"

void doctor_settings_print(void); /* nothing where none is set */
void doctor_settings_put(ts_json_writer *json);

#endif
