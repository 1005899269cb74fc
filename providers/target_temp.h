/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The temporary name of a file that a capture fills: ".NAME.ckpt-PID-N", beside
 * it. Process id, a flock and its age (a minute since the last write) tell
 * whether somebody still fills it, in whatever container; what a dead process
 * left is removed by a later capture into the same directory.
 *
 * Threads: any.
 */
#ifndef CKPT_PROVIDERS_TARGET_TEMP_H
#define CKPT_PROVIDERS_TARGET_TEMP_H

#include "providers/compiler.h"

/* One that no other capture of this process has had; free() it. NULL: no
 * memory. */
MUST_CHECK char *temp_name(const char *name);
/* Removes what dead processes left there. Best effort. */
void temp_sweep(int dir_fd);

#endif
