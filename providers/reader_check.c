/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every tensor must be, whoever tells of it: lengths that fit into 63
 * bits, boxes within the shape that cover it, strides that end where the piece
 * does, pieces that end where the file does, paths that stay in their folder.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_check.h"

#define FILE_NAME_MAX 4096
#define TYPE_NAME_MAX 255

/* Length of the sequence at s; 0 if it is none. */
static size_t utf8_sequence(const uint8_t *s, size_t len)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t n = s[0] < 0x80             ? 1
		   : (s[0] & 0xe0) == 0xc0 ? 2
		   : (s[0] & 0xf0) == 0xe0 ? 3
		   : (s[0] & 0xf8) == 0xf0 ? 4
					   : 0;
	uint32_t c;

	if (!n || n > len)
		return 0;
	if (n == 1)
		return s[0] ? 1 : 0;
	c = s[0] & (0x7f >> n);
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 0;
	return n;
}

bool utf8_valid(const char *s, size_t len)
{
	const uint8_t *p = (const uint8_t *)s;

	while (len) {
		size_t n = utf8_sequence(p, len);

		if (!n)
			return false;
		p += n;
		len -= n;
	}
	return true;
}

static bool text_ok(const char *s, size_t most)
{
	size_t len = strnlen(s, most + 1);

	return len && len <= most && utf8_valid(s, len);
}

/* Relative, and no component that leaves the folder. */
static bool file_ok(const char *file)
{
	if (!text_ok(file, FILE_NAME_MAX) || file[0] == '/')
		return false;
	for (const char *p = file; p; p = strchr(p, '/')) {
		p += *p == '/';
		if (!strncmp(p, "..", 2) && (!p[2] || p[2] == '/'))
			return false;
	}
	return true;
}

int tensor_c_strides(const uint64_t *shape, unsigned n_dims, uint64_t *out)
{
	uint64_t n = 1;

	for (unsigned i = n_dims; i--;) {
		out[i] = n;
		if (__builtin_mul_overflow(n, shape[i], &n))
			return -ENOMSG;
	}
	return 0;
}

/* How many elements; *bytes at most INT64_MAX (they become a file's size). */
static int count(const uint64_t *shape, unsigned n_dims, size_t each,
		 uint64_t *elements)
{
	uint64_t n = 1, bytes;
	bool empty = false;

	/* Others multiply in their own order: no factor may overflow. */
	for (unsigned i = 0; i < n_dims; i++) {
		if (!shape[i])
			empty = true;
		else if (__builtin_mul_overflow(n, shape[i], &n))
			return -ENOMSG;
	}
	if (__builtin_mul_overflow(n, (uint64_t)(each ? each : 1), &bytes) ||
	    bytes > INT64_MAX)
		return -ENOMSG;
	*elements = empty ? 0 : n;
	return 0;
}

/* Do strides lead from off to the end of the piece, and not beyond? */
static bool plain_ok(const struct tensor *t, const struct tensor_piece *p)
{
	size_t each = tensor_type_len(t->type);
	uint64_t last = 0, step;

	if (t->type == TENSOR_PACKED)
		return true;
	for (unsigned i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(p->shape[i] - 1, p->stride[i],
					   &step) ||
		    __builtin_add_overflow(last, step, &last))
			return false;
	if (__builtin_add_overflow(last, 1, &last) ||
	    __builtin_mul_overflow(last, (uint64_t)each, &last))
		return false;
	return last == p->len;
}

static bool box_ok(const struct tensor *t, const struct tensor_piece *p)
{
	for (unsigned i = 0; i < t->n_dims; i++)
		if (p->start[i] > t->shape[i] ||
		    p->shape[i] > t->shape[i] - p->start[i])
			return false;
	return true;
}

static bool piece_ok(const struct tensor *t, const struct tensor_piece *p,
		     uint64_t size)
{
	uint64_t end;

	if (p->file && !file_ok(p->file))
		return false;
	if (__builtin_add_overflow(p->off, p->len, &end) || end > INT64_MAX)
		return false;
	if (!p->file && end > size)
		return false;
	switch (p->coding) {
	case TENSOR_PLAIN:
		return box_ok(t, p) && plain_ok(t, p);
	case TENSOR_DEFLATE:
	case TENSOR_NESTED:
		return box_ok(t, p) && p->len;
	case TENSOR_BY_NAME:
		return t->type == TENSOR_UNKNOWN && p->file;
	}
	return false;
}

static bool type_ok(const struct tensor *t)
{
	if ((unsigned)t->type >= TENSOR_TYPES)
		return false;
	if (t->type == TENSOR_PACKED)
		return !t->n_pieces ||
		       (t->n_pieces == 1 && t->pieces->coding == TENSOR_PLAIN);
	if (t->type == TENSOR_UNKNOWN)
		return !t->n_dims && t->n_pieces == 1 &&
		       t->pieces->coding == TENSOR_BY_NAME;
	return true;
}

int tensor_check(const struct tensor *t, uint64_t size)
{
	uint64_t elements, in_pieces = 0, n;

	if (!text_ok(t->name, TENSOR_NAME_MAX) || !type_ok(t))
		return -ENOMSG;
	if (t->type_name && !text_ok(t->type_name, TYPE_NAME_MAX))
		return -ENOMSG;
	if (count(t->shape, t->n_dims, tensor_type_len(t->type), &elements))
		return -ENOMSG;
	for (unsigned i = 0; i < t->n_pieces; i++) {
		if (!piece_ok(t, &t->pieces[i], size) ||
		    count(t->pieces[i].shape, t->n_dims, 1, &n) ||
		    __builtin_add_overflow(in_pieces, n, &in_pieces))
			return -ENOMSG;
	}
	return in_pieces == elements ? 0 : -ENOMSG;
}
