/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A calloc() that fails when told to, for programs that are linked with
 * --wrap=calloc (CMakeLists.txt).
 */
#ifndef NO_MEMORY_H
#define NO_MEMORY_H

#include <stdatomic.h>
#include <stddef.h>

void *__real_calloc(size_t n, size_t len);
void *__wrap_calloc(size_t n, size_t len);

static atomic_int no_memory_at; /* the n-th from now fails; 0: none */

void *__wrap_calloc(size_t n, size_t len)
{
	if (no_memory_at && atomic_fetch_sub(&no_memory_at, 1) == 1)
		return NULL;
	return __real_calloc(n, len);
}

#endif
