/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From pieces to the image. A range of the image is cut into at most 2n - 1
 * boxes of the tensor; each of them, cut with each piece's box, is one strided
 * copy. Deflated and nested pieces become sources in which the elements are
 * plain: only the way there differs.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_check.h"
#include "providers/reader_copy.h"
#include "providers/reader_gather.h"
#include "providers/reader_inner.h"

#define EACH_MAX 16

uint64_t tensor_len(const struct tensor *t)
{
	if (t->type == TENSOR_UNKNOWN)
		return 0;
	if (t->type == TENSOR_PACKED)
		return t->n_pieces ? t->pieces->len : 0;
	return tensor_elements(t) * tensor_type_len(t->type);
}

bool tensor_is_run(const struct tensor *t, const struct tensor_piece **piece)
{
	const struct tensor_piece *p = t->pieces;
	uint64_t n = 1;

	if (t->n_pieces != 1 || p->coding != TENSOR_PLAIN)
		return false;
	if (t->type != TENSOR_PACKED) {
		if (p->swapped && tensor_type_len(t->type) > 1)
			return false;
		/* It covers the tensor: it is all of it. */
		for (unsigned i = t->n_dims; i--; n *= t->shape[i])
			if (t->shape[i] != 1 && p->stride[i] != n)
				return false;
	}
	*piece = p;
	return true;
}

/* What is big-endian in an element: of a complex one, each half. */
static size_t swap_len(enum tensor_type type)
{
	size_t each = tensor_type_len(type);
	bool complex = type == TENSOR_C32 || type == TENSOR_C64 ||
		       type == TENSOR_C128;

	return complex ? each / 2 : each > 1 ? each : 0;
}

/* Elements [first, end) of the image, which go to `to`. */
struct wanted {
	const struct tensor *t;
	uint64_t first, end;
	uint8_t *to;
	uint64_t stride[TENSOR_DIMS_MAX]; /* of the image */
};

/* A piece whose elements can be read. */
struct opened {
	struct copier copier;
	struct reader_source file, source;
	uint64_t off;           /* of the box's first element in source */
	const uint64_t *stride; /* n_dims */
	struct range_source range;
	struct npy_header npy;
	struct inflater *inflater;
	struct tensor_table *table;
};

static void opened_fini(struct opened *o)
{
	copier_fini(&o->copier);
	inflater_free(o->inflater);
	tensor_table_free(o->table);
}

static int open_deflated(struct opened *o, const struct tensor *t,
			 const struct tensor_piece *p)
{
	int rc = inflater_new(&o->file, p->off, p->len, &o->inflater, &o->npy,
			      &o->source);

	if (rc)
		return rc;
	if (o->npy.type != t->type || o->npy.n_dims != t->n_dims)
		return -EBADMSG;
	for (unsigned i = 0; i < t->n_dims; i++)
		if (o->npy.shape[i] != p->shape[i])
			return -EBADMSG;
	o->off = o->npy.len;
	o->stride = o->npy.stride;
	if (o->npy.swapped)
		o->copier.swap = swap_len(t->type);
	return 0;
}

static int open_nested(struct opened *o, const struct tensor *t,
		       const struct tensor_piece *p)
{
	const struct tensor_piece *inner;
	int rc;

	rc = range_source(&o->range, &o->file, p->off, p->len, &o->source);
	if (!rc)
		rc = nested_scan(&o->source, t, p, &o->table);
	if (rc)
		return rc;
	inner = tensor_table_at(o->table, 0)->pieces;
	o->off = inner->off;
	o->stride = inner->stride;
	if (inner->swapped)
		o->copier.swap = swap_len(t->type);
	return 0;
}

static int open_plain(struct opened *o, const struct tensor *t,
		      const struct tensor_piece *p)
{
	/* The file may have changed since it was scanned. */
	if (p->off > o->file.size || p->len > o->file.size - p->off)
		return -EBADMSG;
	o->source = o->file;
	o->off = p->off;
	o->stride = p->stride;
	if (p->swapped)
		o->copier.swap = swap_len(t->type);
	return 0;
}

/* o stays where it is: sources point into it. */
static int open_piece(struct opened *o, const struct tensor *t,
		      const struct tensor_piece *p, tensor_open *open,
		      void *open_arg)
{
	int rc = open(open_arg, p->file, &o->file);

	if (rc)
		return rc;
	o->copier.each = tensor_type_len(t->type);
	o->copier.source = &o->source;
	switch (p->coding) {
	case TENSOR_PLAIN:
		return open_plain(o, t, p);
	case TENSOR_DEFLATE:
		return open_deflated(o, t, p);
	case TENSOR_NESTED:
		return open_nested(o, t, p);
	case TENSOR_BY_NAME:
		break;
	}
	return -EBADMSG;
}

struct box {
	uint64_t start[TENSOR_DIMS_MAX];
	uint64_t shape[TENSOR_DIMS_MAX];
};

/*
 * The largest box that begins at element `at` and ends at `end` or before: whole
 * in the inner dimensions, some steps along one, one step in the outer ones.
 * Returns how many elements it has.
 */
static uint64_t first_box(const struct wanted *w, uint64_t at, struct box *b)
{
	unsigned n = w->t->n_dims, d = 0;
	uint64_t steps;

	if (!n)
		return 1;
	while (d + 1 < n && (at % w->stride[d] || w->end - at < w->stride[d]))
		d++;
	for (unsigned i = 0; i < n; i++) {
		b->start[i] = at / w->stride[i] % w->t->shape[i];
		b->shape[i] = i < d ? 1 : w->t->shape[i];
	}
	steps = (w->end - at) / w->stride[d];
	if (steps < b->shape[d] - b->start[d])
		b->shape[d] = steps;
	else
		b->shape[d] -= b->start[d];
	return b->shape[d] * w->stride[d];
}

/* What both have; false: nothing. */
static bool cut(struct box *b, const struct tensor_piece *p, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t end = b->start[i] + b->shape[i];
		uint64_t piece_end = p->start[i] + p->shape[i];

		if (b->start[i] < p->start[i])
			b->start[i] = p->start[i];
		if (end > piece_end)
			end = piece_end;
		if (end <= b->start[i])
			return false;
		b->shape[i] = end - b->start[i];
	}
	return true;
}

static int copy_box(struct opened *o, const struct wanted *w,
		    const struct tensor_piece *p, const struct box *b)
{
	struct strided s = { .n = w->t->n_dims };
	uint64_t from = 0, to = 0;

	for (unsigned i = 0; i < s.n; i++) {
		s.shape[i] = b->shape[i];
		s.from[i] = o->stride[i];
		s.to[i] = w->stride[i];
		from += (b->start[i] - p->start[i]) * o->stride[i];
		to += b->start[i] * w->stride[i];
	}
	return copier_copy(&o->copier, &s, o->off + from * o->copier.each,
			   w->to + (to - w->first) * o->copier.each);
}

/* Does any element of the piece lie between first and end? Perhaps. */
static bool touches(const struct wanted *w, const struct tensor_piece *p)
{
	uint64_t low = 0, high = 0;

	for (unsigned i = 0; i < w->t->n_dims; i++) {
		low += p->start[i] * w->stride[i];
		high += (p->start[i] + p->shape[i] - 1) * w->stride[i];
	}
	return low < w->end && high >= w->first;
}

static int gather_piece(const struct wanted *w, const struct tensor_piece *p,
			tensor_open *open, void *open_arg)
{
	CLEANUP(opened_fini) struct opened o = { 0 };
	bool is_open = false;
	int rc = 0;

	for (uint64_t at = w->first; !rc && at < w->end;) {
		struct box b = { 0 };
		uint64_t n = first_box(w, at, &b);

		at += n;
		if (!cut(&b, p, w->t->n_dims))
			continue;
		if (!is_open)
			rc = open_piece(&o, w->t, p, open, open_arg);
		is_open = true;
		if (!rc)
			rc = copy_box(&o, w, p, &b);
	}
	return rc;
}

static int gather_elements(const struct tensor *t, tensor_open *open,
			   void *open_arg, uint8_t *to, uint64_t first,
			   uint64_t n)
{
	struct wanted w = {
		.t = t, .first = first, .end = first + n, .to = to
	};
	int rc = tensor_c_strides(t->shape, t->n_dims, w.stride);

	/* Pieces that overlap leave elements out: none of the heap's then. */
	if (t->n_pieces > 1)
		memset(to, 0, n * tensor_type_len(t->type));
	for (unsigned i = 0; !rc && i < t->n_pieces; i++)
		if (touches(&w, &t->pieces[i]))
			rc = gather_piece(&w, &t->pieces[i], open, open_arg);
	return rc;
}

static int gather_packed(const struct tensor *t, tensor_open *open,
			 void *open_arg, void *buf, size_t len, uint64_t off)
{
	const struct tensor_piece *p = t->pieces;
	struct reader_source file;
	int rc = open(open_arg, p->file, &file);

	if (rc)
		return rc;
	if (p->off > file.size || p->len > file.size - p->off)
		return -EBADMSG;
	return file.read(file.arg, buf, len, p->off + off);
}

int tensor_gather(const struct tensor *t, tensor_open *open, void *open_arg,
		  void *buf, size_t len, uint64_t off)
{
	size_t each = tensor_type_len(t->type), part;
	uint64_t total = tensor_len(t);
	uint8_t one[EACH_MAX], *to = buf;
	int rc = 0;

	if (off > total || len > total - off)
		return -ERANGE;
	if (!len)
		return 0;
	if (t->type == TENSOR_PACKED)
		return gather_packed(t, open, open_arg, buf, len, off);
	while (!rc && len) {
		if (off % each || len < each) { /* a part of an element */
			part = each - off % each;
			if (part > len)
				part = len;
			rc = gather_elements(t, open, open_arg, one, off / each,
					     1);
			if (!rc)
				memcpy(to, one + off % each, part);
		} else {
			part = len - len % each;
			rc = gather_elements(t, open, open_arg, to, off / each,
					     part / each);
		}
		to += part;
		off += part;
		len -= part;
	}
	return rc;
}
