/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers in bytes of given order, n of them, at most 8; and memory that is
 * freed at the end of a scope. Header only, of the readers' own: no state, any
 * thread.
 */
#ifndef CKPT_PROVIDERS_READER_BYTES_H
#define CKPT_PROVIDERS_READER_BYTES_H

#include "providers/compiler.h"

static inline uint64_t get_le(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | p[n];
	return v;
}

static inline uint64_t get_be(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	for (size_t i = 0; i < n; i++)
		v = v << 8 | p[i];
	return v;
}

static inline void put_le(uint8_t *p, uint64_t v, size_t n)
{
	for (size_t i = 0; i < n; i++, v >>= 8)
		p[i] = (uint8_t)v;
}

static inline void free_p(void *p)
{
	free(*(void **)p);
}

#endif
