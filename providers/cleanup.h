/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CLEANUP() calls, for the .c files of this folder (never in a header that
 * engine/ sees: metadata/compiler.h has functions of the same name).
 */
#ifndef CKPT_PROVIDERS_CLEANUP_H
#define CKPT_PROVIDERS_CLEANUP_H

#include <stdlib.h>
#include <unistd.h>

#include "providers/compiler.h"

static inline void free_p(void *p)
{
	free(*(void **)p);
}

static inline void close_p(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

#endif
