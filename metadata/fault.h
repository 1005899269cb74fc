/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points: places in the product where a test makes an operation fail, or
 * the process die, once. In a build with CKPT_FAULTS=ON
 *
 *	r = FAULT("flush.sync", -EIO);
 *
 * is 0 until the environment says that this is the one:
 *
 *	CKPTFS_FAULT=7                 the 7th point that is passed, of any name
 *	CKPTFS_FAULT=flush.sync        the first time this one is passed
 *	CKPTFS_FAULT=flush.sync:3      the third time
 *	CKPTFS_FAULT=...:kill          SIGKILL of the process instead
 *	CKPTFS_FAULT=log               none; each one passed is told
 *
 * Then it is the error, and the operation must not be tried. Any other build
 * has 0 in its place and nothing in the program. Any thread.
 *
 * Error 0 marks a place where only a death is of interest (between two steps
 * that have both succeeded): it counts only where deaths are asked for.
 */
#ifndef CKPT_METADATA_FAULT_H
#define CKPT_METADATA_FAULT_H

#include <stdbool.h>

#include "metadata/compiler.h"

#if CKPT_FAULTS
#define FAULT(name, err) fault_pass((name), (err))
#else
#define FAULT(name, err) 0
#endif

/* What FAULT() calls: err, or 0. Tells the operator what it does. */
MUST_CHECK int fault_pass(const char *name, int err);

/* Has this build any? */
bool fault_is_built(void);

#endif
