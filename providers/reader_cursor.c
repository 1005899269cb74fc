/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A header, front to back: what is skipped is not read, and a read is as large
 * as the buffer, since each may be a request to a remote.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_cursor.h"

/* Small headers are most of them: the first read does not fetch tensors. */
#define FIRST_LEN 4096

int cursor_init(struct reader_cursor *c, const struct reader_source *source,
		uint64_t off, uint64_t end)
{
	uint64_t len = off < end ? end - off : 0;

	*c = (struct reader_cursor){
		.source = source,
		.next = end - len,
		.end = end,
		.buf = malloc(len < CURSOR_LEN ? (size_t)len + 1 : CURSOR_LEN),
	};
	return c->buf ? 0 : -ENOMEM;
}

void cursor_fini(struct reader_cursor *c)
{
	free(c->buf);
	c->buf = NULL;
}

int cursor_fill(struct reader_cursor *c)
{
	uint64_t left = c->end - c->next;
	size_t len = c->fill ? CURSOR_LEN : FIRST_LEN;
	int rc;

	if (c->pos < c->fill)
		return 0;
	if (!left)
		return -ENOMSG;
	if (len > left)
		len = (size_t)left;
	rc = c->source->read(c->source->arg, c->buf, len, c->next);
	if (rc)
		return rc;
	c->next += len;
	c->pos = 0;
	c->fill = len;
	return 0;
}

int cursor_read(struct reader_cursor *c, void *out, size_t len)
{
	uint8_t *to = out;
	int rc;

	if (len > cursor_left(c))
		return -ENOMSG;
	while (len) {
		size_t part;

		rc = cursor_fill(c);
		if (rc)
			return rc;
		part = c->fill - c->pos < len ? c->fill - c->pos : len;
		memcpy(to, c->buf + c->pos, part);
		c->pos += part;
		to += part;
		len -= part;
	}
	return 0;
}

int cursor_skip(struct reader_cursor *c, uint64_t len)
{
	size_t here = c->fill - c->pos;

	if (len > cursor_left(c))
		return -ENOMSG;
	if (len <= here) {
		c->pos += len;
		return 0;
	}
	c->pos = c->fill;
	c->next += len - here;
	return 0;
}
