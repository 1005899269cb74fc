/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as they stand on disk: a growing buffer whose failure is sticky, a
 * reader that never runs past its end, and numbers in either order. Single
 * thread each.
 */
#ifndef CKPT_METADATA_BYTES_H
#define CKPT_METADATA_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "metadata/compiler.h"

struct slice {
	const void *p;
	size_t len;
};

/* All zero is an empty buffer. */
struct bytes {
	uint8_t *p;
	size_t len, cap;
	bool failed; /* an allocation failed since the last bytes_clear() */
};

/* Room for len more bytes, counted in already; NULL: no memory (sticky). */
uint8_t *bytes_add(struct bytes *b, size_t len);
void bytes_append(struct bytes *b, const void *p, size_t len);
/* Empty it; keeps at most `keep` bytes of memory. */
void bytes_clear(struct bytes *b, size_t keep);
void bytes_fini(struct bytes *b);

static inline void put_le(uint8_t *p, uint64_t v, int n)
{
	for (int i = 0; i < n; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *p, int n)
{
	uint64_t v = 0;

	for (int i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

/* Big-endian: for keys, which must sort as numbers. */
static inline void put_be64(uint8_t *p, uint64_t v)
{
	v = __builtin_bswap64(v);
	memcpy(p, &v, 8);
}

static inline uint64_t get_be64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return __builtin_bswap64(v);
}

static inline void add_u8(struct bytes *b, uint8_t v)
{
	uint8_t *p = bytes_add(b, 1);

	if (p)
		*p = v;
}

static inline void add_le(struct bytes *b, uint64_t v, int n)
{
	uint8_t *p = bytes_add(b, (size_t)n);

	if (p)
		put_le(p, v, n);
}

/* Reads forward; past the end everything is 0 and `bad` is set. */
struct reader {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct reader reader_of(const void *p, size_t len)
{
	return (struct reader){ .p = p, .end = (const uint8_t *)p + len };
}

/* The next len bytes, or NULL. */
static inline const uint8_t *read_bytes(struct reader *r, size_t len)
{
	const uint8_t *p = r->p;

	if (r->bad || (size_t)(r->end - r->p) < len) {
		r->bad = true;
		return NULL;
	}
	r->p += len;
	return p;
}

static inline uint64_t read_le(struct reader *r, int n)
{
	const uint8_t *p = read_bytes(r, (size_t)n);

	return p ? get_le(p, n) : 0;
}

#endif
