/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The growing buffer. It doubles, and remembers a failed allocation until it
 * is cleared, so that whoever builds a record checks once, at its end.
 */
#include "metadata/bytes.h"

uint8_t *bytes_add(struct bytes *b, size_t len)
{
	size_t cap = b->cap ? b->cap : 256;
	uint8_t *p;

	if (b->failed)
		return NULL;
	while (cap - b->len < len && cap < SIZE_MAX / 2)
		cap *= 2;
	if (cap != b->cap) {
		p = cap - b->len < len ? NULL : realloc(b->p, cap);
		if (!p) {
			b->failed = true;
			return NULL;
		}
		b->p = p;
		b->cap = cap;
	}
	p = b->p + b->len;
	b->len += len;
	return p;
}

void bytes_append(struct bytes *b, const void *p, size_t len)
{
	uint8_t *to = bytes_add(b, len);

	if (to && len)
		memcpy(to, p, len);
}

void bytes_clear(struct bytes *b, size_t keep)
{
	if (b->cap > keep)
		bytes_fini(b);
	b->len = 0;
	b->failed = false;
}

void bytes_fini(struct bytes *b)
{
	free(b->p);
	*b = (struct bytes){ 0 };
}
