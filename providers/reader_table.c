/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a file, kept. All memory comes from blocks that are freed
 * together and counted, so that a hostile file is refused before it costs more
 * than READER_MEMORY_MAX. Names are sorted once at the end: no hash that input
 * could be made to collide in.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "providers/reader_build.h"
#include "providers/reader_check.h"
#include "providers/reader_formats.h"

/* What is left is for the scan itself. */
#define TABLE_MEMORY_MAX (READER_MEMORY_MAX / 2)
#define BLOCK_MIN 4096
#define BLOCK_MAX (256 << 10)
#define CHUNK 1024 /* tensors are kept in arrays of so many */
#define RECENT 256

struct block {
	struct block *next;
	_Alignas(8) uint8_t bytes[];
};

struct tensor_table {
	const struct reader_ops *ops;
	uint64_t size;
	struct tensor **chunks;
	size_t n_chunks; /* room in chunks */
	size_t n;
	uint32_t *by_name; /* NULL until finished */
	struct block *blocks;
	uint8_t *room; /* in the newest block */
	size_t room_len;
	uint64_t memory;
	const char *recent[RECENT]; /* strings that come again and again */
};

static const uint64_t zeros[TENSOR_DIMS_MAX];

int tensor_table_new(const struct reader_ops *ops, uint64_t size,
		     struct tensor_table **out)
{
	struct tensor_table *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->ops = ops;
	t->size = size;
	*out = t;
	return 0;
}

void tensor_table_free(struct tensor_table *table)
{
	struct block *b, *next;

	if (!table)
		return;
	for (b = table->blocks; b; b = next) {
		next = b->next;
		free(b);
	}
	free(table->chunks);
	free(table->by_name);
	free(table);
}

static int block_new(struct tensor_table *t, size_t least)
{
	size_t len = t->memory < BLOCK_MIN   ? BLOCK_MIN
		     : t->memory > BLOCK_MAX ? BLOCK_MAX
					     : (size_t)t->memory;
	struct block *b;

	if (len < least)
		len = least;
	if (len > TABLE_MEMORY_MAX - t->memory)
		return -E2BIG;
	b = malloc(sizeof(*b) + len);
	if (!b)
		return -ENOMEM;
	b->next = t->blocks;
	t->blocks = b;
	t->memory += len;
	t->room = b->bytes;
	t->room_len = len;
	return 0;
}

static int alloc(struct tensor_table *t, uint64_t len, void *out)
{
	int rc;

	if (len > TABLE_MEMORY_MAX)
		return -E2BIG;
	len = len ? (len + 7) & ~UINT64_C(7) : 8;
	if (len > t->room_len) {
		rc = block_new(t, len);
		if (rc)
			return rc;
	}
	*(void **)out = t->room;
	t->room += len;
	t->room_len -= len;
	return 0;
}

static int copy(struct tensor_table *t, const void *from, size_t len, void *out)
{
	int rc = alloc(t, len, out);

	if (!rc && len)
		memcpy(*(void **)out, from, len);
	return rc;
}

/* One copy for those that come often: files of pieces, names of types. */
static int copy_shared(struct tensor_table *t, const char *s, const char **out)
{
	size_t len, hash = 0;
	const char **slot;
	int rc;

	if (!s) {
		*out = NULL;
		return 0;
	}
	for (len = 0; s[len]; len++)
		hash = hash * 31 + (uint8_t)s[len];
	slot = &t->recent[hash % RECENT];
	if (!*slot || strcmp(*slot, s) != 0) {
		rc = copy(t, s, len + 1, slot);
		if (rc)
			return rc;
	}
	*out = *slot;
	return 0;
}

static bool is_empty(const uint64_t *shape, unsigned n_dims)
{
	for (unsigned i = 0; i < n_dims; i++)
		if (!shape[i])
			return true;
	return false;
}

static int copy_dims(struct tensor_table *t, const uint64_t *from, unsigned n,
		     const uint64_t *instead, const uint64_t **out)
{
	if (!from || (n && !memcmp(from, instead, n * sizeof(*from)))) {
		*out = instead;
		return 0;
	}
	return copy(t, from, n * sizeof(*from), out);
}

/* All three, whatever the format left out. n_dims of them. */
static int copy_box(struct tensor_table *t, const struct tensor *of,
		    struct tensor_piece *p)
{
	uint64_t strides[TENSOR_DIMS_MAX];
	int rc;

	rc = copy_dims(t, p->start, of->n_dims, zeros, &p->start);
	if (!rc)
		rc = copy_dims(t, p->shape, of->n_dims, of->shape, &p->shape);
	if (rc)
		return rc;
	if (p->coding != TENSOR_PLAIN) {
		p->stride = NULL;
		return 0;
	}
	if (!p->stride) {
		rc = tensor_c_strides(p->shape, of->n_dims, strides);
		if (rc)
			return rc;
		p->stride = strides;
	}
	return copy(t, p->stride, of->n_dims * sizeof(*strides), &p->stride);
}

static int copy_pieces(struct tensor_table *t, struct tensor *of)
{
	const struct tensor_piece *from = of->pieces;
	struct tensor_piece *to;
	unsigned n = 0;
	int rc;

	rc = alloc(t, (uint64_t)of->n_pieces * sizeof(*to), &to);
	if (rc)
		return rc;
	for (unsigned i = 0; !rc && i < of->n_pieces; i++) {
		if (is_empty(from[i].shape ? from[i].shape : of->shape,
			     of->n_dims))
			continue;
		to[n] = from[i];
		rc = copy_shared(t, from[i].file, &to[n].file);
		if (!rc)
			rc = copy_box(t, of, &to[n++]);
	}
	of->pieces = to;
	of->n_pieces = n;
	return rc;
}

/* Make *to, a shallow copy, a deep one. */
static int deepen(struct tensor_table *t, struct tensor *to)
{
	int rc;

	rc = copy(t, to->name, strlen(to->name) + 1, &to->name);
	if (!rc)
		rc = copy_shared(t, to->type_name, &to->type_name);
	if (!rc)
		rc = copy(t, to->shape, to->n_dims * sizeof(*to->shape),
			  &to->shape);
	if (!rc)
		rc = copy_pieces(t, to);
	return rc;
}

/* Where number n goes. */
static int slot(struct tensor_table *t, struct tensor **out)
{
	size_t chunk = t->n / CHUNK, room;
	struct tensor **more;
	int rc;

	if (t->n >= READER_TENSORS_MAX)
		return -E2BIG;
	if (chunk == t->n_chunks) {
		room = chunk ? chunk * 2 : 8;
		more = realloc(t->chunks, room * sizeof(struct tensor *));
		if (!more)
			return -ENOMEM;
		t->chunks = more;
		t->n_chunks = room;
	}
	if (t->n % CHUNK == 0) {
		rc = alloc(t, CHUNK * sizeof(**out), &t->chunks[chunk]);
		if (rc)
			return rc;
	}
	*out = &t->chunks[chunk][t->n % CHUNK];
	return 0;
}

int tensor_table_add(void *table, const struct tensor *t)
{
	struct tensor_table *to = table;
	struct tensor *kept;
	int rc;

	assert(!to->by_name);
	if (t->n_dims > TENSOR_DIMS_MAX ||
	    strnlen(t->name, TENSOR_NAME_MAX + 1) > TENSOR_NAME_MAX)
		return -ENOMSG;
	rc = slot(to, &kept);
	if (rc)
		return rc;
	*kept = *t;
	rc = deepen(to, kept);
	if (!rc)
		rc = tensor_check(kept, to->size);
	if (!rc)
		to->n++;
	return rc;
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct tensor_table *t = arg;

	return strcmp(tensor_table_at(t, *(const uint32_t *)a)->name,
		      tensor_table_at(t, *(const uint32_t *)b)->name);
}

int tensor_table_finish(struct tensor_table *t)
{
	uint32_t *order = malloc((t->n + 1) * sizeof(*order));

	if (!order)
		return -ENOMEM;
	for (size_t i = 0; i < t->n; i++)
		order[i] = (uint32_t)i;
	qsort_r(order, t->n, sizeof(*order), by_name, t);
	t->by_name = order;
	for (size_t i = 1; i < t->n; i++)
		if (!by_name(&order[i - 1], &order[i], t))
			return -ENOMSG;
	return 0;
}

int tensor_table_scan_as(const struct reader_ops *ops,
			 const struct reader_source *source,
			 struct tensor_table **out)
{
	CLEANUP(tensor_table_freep) struct tensor_table *t = NULL;
	int rc;

	rc = tensor_table_new(ops, source->size, &t);
	if (!rc)
		rc = ops->scan(source, tensor_table_add, t);
	if (!rc)
		rc = tensor_table_finish(t);
	if (!rc)
		*out = MOVE(t);
	return rc;
}

int tensor_table_scan(const struct reader_source *source, const char *name,
		      struct tensor_table **out)
{
	uint8_t head[READER_HEAD_LEN];
	size_t len = source->size < sizeof(head) ? (size_t)source->size
						 : sizeof(head);
	int rc = source->read(source->arg, head, len, 0);

	if (rc)
		return rc;
	for (size_t i = 0; reader_formats[i]; i++) {
		if (!reader_formats[i]->knows(head, len, name))
			continue;
		rc = tensor_table_scan_as(reader_formats[i], source, out);
		if (rc != -ENOMSG)
			return rc;
	}
	return -ENOMSG;
}

const struct reader_ops *tensor_table_ops(const struct tensor_table *table)
{
	return table->ops;
}

const char *tensor_table_format(const struct tensor_table *table)
{
	return table->ops->name;
}

size_t tensor_table_count(const struct tensor_table *table)
{
	return table->n;
}

uint64_t tensor_table_memory(const struct tensor_table *table)
{
	return table->memory;
}

const struct tensor *tensor_table_at(const struct tensor_table *table, size_t i)
{
	assert(i < table->n);
	return &table->chunks[i / CHUNK][i % CHUNK];
}

const struct tensor *tensor_table_find(const struct tensor_table *table,
				       const char *name)
{
	size_t low = 0, high = table->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct tensor *t =
			tensor_table_at(table, table->by_name[mid]);
		int order = strcmp(name, t->name);

		if (!order)
			return t;
		if (order < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}
