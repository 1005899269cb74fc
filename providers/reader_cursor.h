/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a header from a source front to back, through a buffer, never past
 * an end that is set at the start. For the formats; one thread.
 */
#ifndef CKPT_PROVIDERS_READER_CURSOR_H
#define CKPT_PROVIDERS_READER_CURSOR_H

#include "providers/reader.h"

#define CURSOR_LEN (256 << 10)

/* The fields are the inline functions' business. */
struct reader_cursor {
	const struct reader_source *source;
	uint64_t next; /* what follows the buffer, in the source */
	uint64_t end;
	size_t pos, fill; /* in the buffer */
	uint8_t *buf;
};

/*
 * Over [off, end) of source; end <= its size. Give back with cursor_fini().
 *
 *   -ENOMEM
 */
MUST_CHECK int cursor_init(struct reader_cursor *c,
			   const struct reader_source *source, uint64_t off,
			   uint64_t end);

/* All zero is fine. */
void cursor_fini(struct reader_cursor *c);

/*
 * At least a byte at c->buf + c->pos.
 *
 *   -ENOMSG  at the end
 *   others   as the source's read
 */
MUST_CHECK int cursor_fill(struct reader_cursor *c);

/*
 * The next len bytes; skip: reads none of them.
 *
 *   -ENOMSG  they reach past the end
 *   others   as the source's read
 */
MUST_CHECK int cursor_read(struct reader_cursor *c, void *out, size_t len);
MUST_CHECK int cursor_skip(struct reader_cursor *c, uint64_t len);

/* Where the next byte lies in the source; and how many there are to the end. */
static inline uint64_t cursor_at(const struct reader_cursor *c)
{
	return c->next - (c->fill - c->pos);
}

static inline uint64_t cursor_left(const struct reader_cursor *c)
{
	return c->end - cursor_at(c);
}

/* Look at the next byte; errors as cursor_fill(). */
MUST_CHECK static inline int cursor_peek(struct reader_cursor *c, uint8_t *out)
{
	int rc = c->pos < c->fill ? 0 : cursor_fill(c);

	if (!rc)
		*out = c->buf[c->pos];
	return rc;
}

/* Take it. */
MUST_CHECK static inline int cursor_byte(struct reader_cursor *c, uint8_t *out)
{
	int rc = cursor_peek(c, out);

	if (!rc)
		c->pos++;
	return rc;
}

#endif
