/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table whose tensors lie in other files: what those files say of them. Each
 * file that is named by BY_NAME pieces is scanned once, one after the other; its
 * tensors wait in a table of their own until all can be told in their order.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_build.h"
#include "providers/reader_bytes.h"
#include "providers/reader_inner.h"

struct resolver {
	const struct tensor_table *table;
	tensor_open *open;
	void *arg;
	struct tensor_table *waiting;
	uint32_t *order; /* BY_NAME tensors, by file */
	size_t n_order;
	uint32_t *place; /* of each tensor in waiting, from 1; 0: not there */
};

static void resolver_fini(struct resolver *r)
{
	tensor_table_free(r->waiting);
	free(r->order);
	free(r->place);
}

/* Not found, or not what was expected: then it stays as it was. */
static bool is_soft(int rc)
{
	return rc == -ENOENT || rc == -ENOMSG || rc == -EBADMSG;
}

static const char *file_of(const struct resolver *r, uint32_t i)
{
	return tensor_table_at(r->table, i)->pieces->file;
}

static int by_file(const void *a, const void *b, void *arg)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	int order = strcmp(file_of(arg, x), file_of(arg, y));

	return order ? order : x < y ? -1 : x > y;
}

static int make_order(struct resolver *r)
{
	size_t n = tensor_table_count(r->table);

	r->order = calloc(n + 1, sizeof(*r->order));
	r->place = calloc(n + 1, sizeof(*r->place));
	if (!r->order || !r->place)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		if (tensor_table_at(r->table, i)->type == TENSOR_UNKNOWN)
			r->order[r->n_order++] = (uint32_t)i;
	qsort_r(r->order, r->n_order, sizeof(*r->order), by_file, r);
	return 0;
}

/* Keep t, whose pieces lie in file, for number i. */
static int keep(struct resolver *r, const struct tensor *t, const char *file,
		uint32_t i)
{
	CLEANUP(free_p) struct tensor_piece *pieces = NULL;
	struct tensor copy = *t;
	int rc;

	if (t->type == TENSOR_UNKNOWN)
		return -ENOENT;
	pieces = calloc(t->n_pieces + 1, sizeof(*pieces));
	if (!pieces)
		return -ENOMEM;
	for (unsigned j = 0; j < t->n_pieces; j++) {
		/* It would be relative to another folder. */
		if (t->pieces[j].file)
			return -ENOENT;
		pieces[j] = t->pieces[j];
		pieces[j].file = file;
	}
	copy.pieces = pieces;
	rc = tensor_table_add(r->waiting, &copy);
	if (!rc)
		r->place[i] = (uint32_t)tensor_table_count(r->waiting);
	return rc;
}

/* Tensors order[from], order[from + 1], …, to, all of one file. */
static int resolve_file(struct resolver *r, size_t from, size_t to)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	const char *file = file_of(r, r->order[from]);
	const char *slash = strrchr(file, '/');
	struct reader_source source;
	int rc = r->open(r->arg, file, &source);

	if (!rc)
		rc = tensor_table_scan(&source, slash ? slash + 1 : file,
				       &table);
	if (rc)
		return is_soft(rc) || rc == -E2BIG ? 0 : rc;
	for (; from < to; from++) {
		uint32_t i = r->order[from];
		const struct tensor *t = tensor_table_find(
			table, tensor_table_at(r->table, i)->name);

		rc = t ? keep(r, t, file, i) : 0;
		if (rc && !is_soft(rc))
			return rc;
	}
	return 0;
}

static int resolve_files(struct resolver *r)
{
	size_t from = 0, to;
	int rc = 0;

	for (; !rc && from < r->n_order; from = to) {
		const char *file = file_of(r, r->order[from]);

		for (to = from + 1; to < r->n_order; to++)
			if (strcmp(file_of(r, r->order[to]), file) != 0)
				break;
		rc = resolve_file(r, from, to);
	}
	return rc;
}

/* Where the elements of a nested piece lie in the file around it. */
static int resolve_nested(struct resolver *r, const struct tensor *t,
			  struct tensor_piece *p, uint64_t *stride)
{
	CLEANUP(tensor_table_freep) struct tensor_table *table = NULL;
	struct reader_source file, source;
	const struct tensor_piece *inner;
	struct range_source range;
	int rc = r->open(r->arg, p->file, &file);

	if (!rc)
		rc = range_source(&range, &file, p->off, p->len, &source);
	if (!rc)
		rc = nested_scan(&source, t, p, &table);
	if (rc)
		return is_soft(rc) ? 0 : rc;
	inner = tensor_table_at(table, 0)->pieces;
	if (t->n_dims)
		memcpy(stride, inner->stride, t->n_dims * sizeof(*stride));
	p->stride = stride;
	p->coding = TENSOR_PLAIN;
	p->swapped = inner->swapped;
	p->off += inner->off;
	p->len = inner->len;
	return 0;
}

static bool has_nested(const struct tensor *t)
{
	for (unsigned i = 0; i < t->n_pieces; i++)
		if (t->pieces[i].coding == TENSOR_NESTED)
			return true;
	return false;
}

static int add_nested(struct resolver *r, const struct tensor *t,
		      struct tensor_table *out)
{
	CLEANUP(free_p) struct tensor_piece *pieces = NULL;
	CLEANUP(free_p) uint64_t *strides = NULL;
	struct tensor copy = *t;
	int rc = 0;

	pieces = calloc(t->n_pieces, sizeof(*pieces));
	strides =
		calloc((size_t)t->n_pieces * (t->n_dims + 1), sizeof(*strides));
	if (!pieces || !strides)
		return -ENOMEM;
	for (unsigned i = 0; !rc && i < t->n_pieces; i++) {
		pieces[i] = t->pieces[i];
		if (pieces[i].coding == TENSOR_NESTED)
			rc = resolve_nested(r, t, &pieces[i],
					    strides + (size_t)i * t->n_dims);
	}
	copy.pieces = pieces;
	return rc ? rc : tensor_table_add(out, &copy);
}

static int add_all(struct resolver *r, struct tensor_table *out)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < tensor_table_count(r->table); i++) {
		const struct tensor *t = tensor_table_at(r->table, i);

		if (r->place[i])
			t = tensor_table_at(r->waiting, r->place[i] - 1);
		rc = has_nested(t) ? add_nested(r, t, out)
				   : tensor_table_add(out, t);
	}
	return rc;
}

int tensor_table_resolve(const struct tensor_table *table, tensor_open *open,
			 void *arg, struct tensor_table **out)
{
	CLEANUP(tensor_table_freep) struct tensor_table *made = NULL;
	CLEANUP(resolver_fini)
	struct resolver r = {
		.table = table,
		.open = open,
		.arg = arg,
	};
	int rc = make_order(&r);

	if (!rc)
		rc = tensor_table_new(tensor_table_ops(table), UINT64_MAX,
				      &r.waiting);
	if (!rc)
		rc = resolve_files(&r);
	if (!rc)
		rc = tensor_table_new(tensor_table_ops(table), UINT64_MAX,
				      &made);
	if (!rc)
		rc = add_all(&r, made);
	if (!rc)
		rc = tensor_table_finish(made);
	if (!rc)
		*out = MOVE(made);
	return rc;
}
