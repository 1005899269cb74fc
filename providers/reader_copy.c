/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strided copy that reads well: dimensions in the order of the source, so
 * that it is read front to back whatever order the elements are wanted in;
 * what is contiguous on both sides goes straight to its place; what is
 * scattered is picked from windows, unless it lies so far apart that reading
 * all between would be worse than one read for each piece.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_copy.h"

#define DIRECT_LEN (64 << 10) /* a run worth a read of its own */
#define SPARSE 32             /* read at most so many times what is needed */

void copier_fini(struct copier *c)
{
	free(c->window);
	c->window = NULL;
	c->window_len = 0;
}

/* Room for len bytes; what was in it is gone. */
static int make_window(struct copier *c, size_t len)
{
	if (len <= c->window_len)
		return 0;
	copier_fini(c);
	c->window = malloc(len);
	if (!c->window)
		return -ENOMEM;
	c->window_len = len;
	return 0;
}

/* Bytes in place, unit by unit. */
static void swap_units(uint8_t *p, size_t len, size_t unit)
{
	for (; len; p += unit, len -= unit)
		for (size_t i = 0; i < unit / 2; i++) {
			uint8_t b = p[i];

			p[i] = p[unit - 1 - i];
			p[unit - 1 - i] = b;
		}
}

static int read_run(struct copier *c, uint64_t off, uint8_t *to, uint64_t n)
{
	size_t len = (size_t)n * c->each;
	int rc = c->source->read(c->source->arg, to, len, off);

	if (!rc && c->swap)
		swap_units(to, len, c->swap);
	return rc;
}

/* The compiler makes one move of each. */
static void move_each(uint8_t *to, const uint8_t *from, size_t each)
{
	switch (each) {
	case 1:
		*to = *from;
		break;
	case 2:
		memcpy(to, from, 2);
		break;
	case 4:
		memcpy(to, from, 4);
		break;
	case 8:
		memcpy(to, from, 8);
		break;
	default:
		memcpy(to, from, each);
	}
}

/* Dimensions d and further, from the window. */
static void scatter(const struct copier *c, const struct strided *b, unsigned d,
		    uint64_t shape, const uint8_t *from, uint8_t *to)
{
	uint64_t from_step = b->from[d] * c->each, to_step = b->to[d] * c->each;

	if (d + 1 < b->n) {
		for (; shape--; from += from_step, to += to_step)
			scatter(c, b, d + 1, b->shape[d + 1], from, to);
		return;
	}
	if (b->from[d] == 1 && b->to[d] == 1) {
		memcpy(to, from, shape * c->each);
		if (c->swap)
			swap_units(to, shape * c->each, c->swap);
		return;
	}
	for (; shape--; from += from_step, to += to_step) {
		move_each(to, from, c->each);
		if (c->swap)
			swap_units(to, c->each, c->swap);
	}
}

/* A box, and what its dimensions from d on come to. */
struct measured {
	struct strided b;
	uint64_t span[TENSOR_DIMS_MAX + 1];  /* elements, first to last */
	uint64_t count[TENSOR_DIMS_MAX + 1]; /* elements that are wanted */
};

static uint64_t span_of(const struct measured *m, unsigned d, uint64_t n)
{
	return (n - 1) * m->b.from[d] + m->span[d + 1];
}

static bool fits_window(const struct copier *c, uint64_t span, uint64_t count)
{
	return span <= COPY_WINDOW / c->each &&
	       (count >= span / SPARSE || span * c->each <= 4096);
}

/* How many steps along d can one window serve? */
static uint64_t steps(const struct copier *c, const struct measured *m,
		      unsigned d)
{
	uint64_t most = COPY_WINDOW / c->each, n = m->b.shape[d];

	if (m->span[d + 1] > most)
		return 0;
	if (m->b.from[d]) {
		uint64_t fit = (most - m->span[d + 1]) / m->b.from[d] + 1;

		if (n > fit)
			n = fit;
	}
	return fits_window(c, span_of(m, d, n), n * m->count[d + 1]) ? n : 0;
}

static bool is_direct(const struct copier *c, const struct measured *m)
{
	unsigned last = m->b.n - 1;

	return m->b.from[last] == 1 && m->b.to[last] == 1 &&
	       (m->b.n == 1 || m->b.shape[last] >= DIRECT_LEN / c->each);
}

/* n steps along d through the window. */
static int through_window(struct copier *c, const struct measured *m,
			  unsigned d, uint64_t n, uint64_t off, uint8_t *to)
{
	size_t len = (size_t)span_of(m, d, n) * c->each;
	int rc = make_window(c, len);

	if (rc)
		return rc;
	rc = c->source->read(c->source->arg, c->window, len, off);
	if (!rc)
		scatter(c, &m->b, d, n, c->window, to);
	return rc;
}

static int copy_dims(struct copier *c, const struct measured *m, unsigned d,
		     uint64_t off, uint8_t *to)
{
	const struct strided *b = &m->b;
	uint64_t n, left;
	bool direct;
	int rc = 0;

	if (d == b->n)
		return read_run(c, off, to, 1);
	direct = is_direct(c, m);
	if (direct && d + 1 == b->n)
		return read_run(c, off, to, b->shape[d]);
	n = direct ? 0 : steps(c, m, d);
	for (left = b->shape[d]; !rc && left; left -= n ? n : 1) {
		uint64_t step = n ? n : 1;

		if (n > left)
			n = step = left;
		rc = n ? through_window(c, m, d, n, off, to)
		       : copy_dims(c, m, d + 1, off, to);
		off += step * b->from[d] * c->each;
		to += step * b->to[d] * c->each;
	}
	return rc;
}

/* Largest steps in the source first; equal ones stay in their order. */
static void sort_dims(struct strided *b)
{
	for (unsigned i = 1; i < b->n; i++)
		for (unsigned j = i; j && b->from[j - 1] < b->from[j]; j--) {
			uint64_t *all[] = { b->shape, b->from, b->to };

			for (unsigned k = 0; k < 3; k++) {
				uint64_t v = all[k][j];

				all[k][j] = all[k][j - 1];
				all[k][j - 1] = v;
			}
		}
}

/* Do steps of dimension i lead on from the end of dimension j? */
static bool continues(const struct strided *b, unsigned i, unsigned j)
{
	return b->from[i] == b->from[j] * b->shape[j] &&
	       b->to[i] == b->to[j] * b->shape[j];
}

static void merge_dims(struct strided *b)
{
	unsigned n = 0;

	for (unsigned i = 0; i < b->n; i++) {
		uint64_t shape = b->shape[i];

		if (shape == 1)
			continue;
		if (n && continues(b, n - 1, i))
			shape *= b->shape[--n];
		b->shape[n] = shape;
		b->from[n] = b->from[i];
		b->to[n] = b->to[i];
		n++;
	}
	b->n = n;
}

int copier_copy(struct copier *c, struct strided *box, uint64_t off,
		uint8_t *to)
{
	struct measured m;

	sort_dims(box);
	merge_dims(box);
	m.b = *box;
	m.span[box->n] = m.count[box->n] = 1;
	for (unsigned i = box->n; i--;) {
		m.span[i] = span_of(&m, i, box->shape[i]);
		m.count[i] = m.count[i + 1] * box->shape[i];
	}
	return copy_dims(c, &m, 0, off, to);
}
