/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Behind reader_catalog.h. Both questions are answered by sorting, so that no
 * input makes them slow.
 *
 * Names: sorted, equal ones are neighbours. A made name ends in the group's
 * name and a number, so made names of two groups never meet; only those that
 * came with the file are searched.
 *
 * Sharing: the ends of all tensors cut the file into segments. In the order of
 * their coming, tensors ask whether one of their segments is taken, then take
 * them all. Taken segments are counted in a Fenwick tree, and those that are
 * taken are jumped over, so that each is taken once: O(n log n), whatever
 * overlaps what. Views with gaps count as all between their ends.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "providers/reader_catalog.h"

#define SUFFIX_MAX 16

/* Of the room for arrays in report(): worst case, for each tensor. */
#define REPORT_EACH (4 * sizeof(uint64_t) + 4 * sizeof(uint32_t))

struct kept {
	uint64_t off;
	uint64_t len;
	uint32_t name;   /* offset in names */
	uint32_t dims;   /* offset in dims: shape, then stride */
	uint32_t suffix; /* 0: none */
	uint8_t type;
	uint8_t n_dims;
	bool swapped;
	bool shared;
};

struct grown {
	void *at;
	size_t n;
	size_t room;
};

struct catalog {
	size_t memory;
	struct grown kept;
	struct grown names;
	struct grown dims;
};

int catalog_new(size_t memory, struct catalog **out)
{
	struct catalog *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->memory = memory;
	*out = c;
	return 0;
}

void catalog_free(struct catalog *c)
{
	if (!c)
		return;
	free(c->kept.at);
	free(c->names.at);
	free(c->dims.at);
	free(c);
}

void catalog_freep(struct catalog **c)
{
	catalog_free(*c);
}

/* Also when nothing more is needed: at is then set, as 0 may be added to it. */
static int grow(struct catalog *c, struct grown *g, size_t elem, size_t more)
{
	size_t room = g->room ? g->room : 256;
	void *at;

	if (g->at && more <= g->room - g->n)
		return 0;
	while (room - g->n < more)
		room *= 2;
	if (room > INT32_MAX || (room - g->room) * elem > c->memory)
		return -E2BIG;
	at = realloc(g->at, room * elem);
	if (!at)
		return -ENOMEM;
	c->memory -= (room - g->room) * elem;
	g->at = at;
	g->room = room;
	return 0;
}

static struct kept *kept_at(const struct catalog *c, size_t i)
{
	return (struct kept *)c->kept.at + i;
}

static char *name_at(const struct catalog *c, size_t i)
{
	return (char *)c->names.at + kept_at(c, i)->name;
}

int catalog_add(struct catalog *c, const char *name, size_t len,
		const struct catalog_item *item)
{
	size_t n_dims = item->n_dims;
	uint64_t *dims;
	int err = grow(c, &c->kept, sizeof(struct kept), 1);

	if (!err)
		err = grow(c, &c->names, 1, len + 1);
	if (!err)
		err = grow(c, &c->dims, sizeof(*dims), 2 * n_dims);
	if (!err && REPORT_EACH > c->memory)
		err = -E2BIG;
	if (err)
		return err;
	c->memory -= REPORT_EACH;
	*kept_at(c, c->kept.n++) = (struct kept){
		.off = item->off,
		.len = item->len,
		.name = (uint32_t)c->names.n,
		.dims = (uint32_t)c->dims.n,
		.type = (uint8_t)item->type,
		.n_dims = (uint8_t)n_dims,
		.swapped = item->swapped,
	};
	memcpy((char *)c->names.at + c->names.n, name, len);
	((char *)c->names.at)[c->names.n + len] = '\0';
	c->names.n += len + 1;
	dims = (uint64_t *)c->dims.at + c->dims.n;
	for (size_t i = 0; i < n_dims; i++) {
		dims[i] = item->shape[i];
		dims[n_dims + i] = item->stride[i];
	}
	c->dims.n += 2 * n_dims;
	return 0;
}

/* ---- names ---- */

static int by_name(const void *a, const void *b, void *arg)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	int d = strcmp(name_at(arg, x), name_at(arg, y));

	return d ? d : (x > y) - (x < y);
}

static bool name_came(const struct catalog *c, const uint32_t *order,
		      const char *name)
{
	size_t low = 0, high = c->kept.n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int d = strcmp(name, name_at(c, order[mid]));

		if (!d)
			return true;
		if (d < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return false;
}

/* Too long a name with its suffix is cut by none: such names never come. */
static void put_name(const struct catalog *c, size_t i, uint32_t suffix,
		     char *buf, size_t room)
{
	if (suffix)
		snprintf(buf, room, "%s#%u", name_at(c, i), suffix);
	else
		snprintf(buf, room, "%s", name_at(c, i));
}

static int set_suffixes(struct catalog *c)
{
	char buf[TENSOR_NAME_MAX + SUFFIX_MAX];
	size_t n = c->kept.n;
	uint32_t *order = malloc((n + 1) * sizeof(*order));
	uint32_t suffix = 1;

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, n, sizeof(*order), by_name, c);
	for (size_t i = 1; i < n; i++) {
		if (strcmp(name_at(c, order[i - 1]), name_at(c, order[i]))) {
			suffix = 1;
			continue;
		}
		do {
			put_name(c, order[i], ++suffix, buf, sizeof(buf));
		} while (name_came(c, order, buf));
		kept_at(c, order[i])->suffix = suffix;
	}
	free(order);
	return 0;
}

/* ---- sharing ---- */

struct segments {
	uint64_t *ends;  /* sorted: segment i is [ends[i], ends[i + 1]) */
	uint32_t *next;  /* the first segment from i on that may be free */
	uint32_t *taken; /* Fenwick tree, from 1 on */
	size_t n;        /* of ends */
};

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint32_t segment_at(const struct segments *s, uint64_t off)
{
	size_t low = 0, high = s->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (s->ends[mid] < off)
			low = mid + 1;
		else
			high = mid;
	}
	return (uint32_t)low;
}

static uint32_t taken_before(const struct segments *s, uint32_t i)
{
	uint32_t n = 0;

	for (; i; i &= i - 1)
		n += s->taken[i];
	return n;
}

static uint32_t next_free(struct segments *s, uint32_t i)
{
	while (s->next[i] != i) {
		s->next[i] = s->next[s->next[i]];
		i = s->next[i];
	}
	return i;
}

/* Take what is free of [from, to); was some of it taken? */
static bool take(struct segments *s, uint32_t from, uint32_t to)
{
	bool was = taken_before(s, to) > taken_before(s, from);

	for (uint32_t i = next_free(s, from); i < to; i = next_free(s, i)) {
		s->next[i] = i + 1;
		for (size_t j = (size_t)i + 1; j <= s->n; j += j & -j)
			s->taken[j]++;
	}
	return was;
}

static void make_segments(const struct catalog *c, struct segments *s)
{
	size_t n = 0;

	for (size_t i = 0; i < c->kept.n; i++) {
		s->ends[n++] = kept_at(c, i)->off;
		s->ends[n++] = kept_at(c, i)->off + kept_at(c, i)->len;
	}
	qsort(s->ends, n, sizeof(*s->ends), by_value);
	s->n = 0;
	for (size_t i = 0; i < n; i++)
		if (!s->n || s->ends[s->n - 1] != s->ends[i])
			s->ends[s->n++] = s->ends[i];
	for (size_t i = 0; i <= s->n; i++)
		s->next[i] = (uint32_t)i;
}

static int set_shared(struct catalog *c)
{
	size_t n = 2 * c->kept.n;
	struct segments s = {
		.ends = malloc((n + 1) * sizeof(uint64_t)),
		.next = malloc((n + 1) * sizeof(uint32_t)),
		.taken = calloc(n + 1, sizeof(uint32_t)),
	};
	int err = s.ends && s.next && s.taken ? 0 : -ENOMEM;

	if (!err) {
		make_segments(c, &s);
		for (size_t i = 0; i < c->kept.n; i++) {
			struct kept *k = kept_at(c, i);

			k->shared = take(&s, segment_at(&s, k->off),
					 segment_at(&s, k->off + k->len));
		}
	}
	free(s.ends);
	free(s.next);
	free(s.taken);
	return err;
}

/* ---- handing out ---- */

static int report(const struct catalog *c, size_t i, tensor_found *found,
		  void *arg)
{
	char name[TENSOR_NAME_MAX + SUFFIX_MAX];
	const struct kept *k = kept_at(c, i);
	const uint64_t *dims = (const uint64_t *)c->dims.at + k->dims;
	const struct tensor_piece piece = {
		.coding = TENSOR_PLAIN,
		.swapped = k->swapped,
		.off = k->off,
		.len = k->len,
		.stride = dims + k->n_dims,
	};
	const struct tensor t = {
		.name = name,
		.type = k->type,
		.n_dims = k->n_dims,
		.shape = dims,
		.pieces = &piece,
		.n_pieces = k->len ? 1 : 0,
		.shared = k->shared,
	};

	put_name(c, i, k->suffix, name, sizeof(name));
	return found(arg, &t);
}

int catalog_report(struct catalog *c, tensor_found *found, void *arg)
{
	int err = set_suffixes(c);

	if (!err)
		err = set_shared(c);
	for (size_t i = 0; !err && i < c->kept.n; i++)
		err = report(c, i, found, arg);
	return err;
}
