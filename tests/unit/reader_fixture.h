/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of bytes in memory for the tests of the readers: a source that refuses
 * to be read beyond its end, and comparing of tables.
 */
#ifndef CKPT_TESTS_UNIT_READER_FIXTURE_H
#define CKPT_TESTS_UNIT_READER_FIXTURE_H

#include "check.h"
#include "providers/reader_bytes.h"
#include "providers/reader_build.h"
#include "providers/reader_gather.h"

struct bytes_file {
	const uint8_t *p;
	size_t len;
	size_t n_reads, n_read; /* how often, how many bytes */
	int error;              /* instead of reading */
};

__attribute__((unused)) static int bytes_read(void *arg, void *buf, size_t len,
					      uint64_t off)
{
	struct bytes_file *f = arg;

	CHECK(off <= f->len && len <= f->len - off);
	f->n_reads++;
	f->n_read += len;
	if (f->error)
		return f->error;
	if (len)
		memcpy(buf, f->p + off, len);
	return 0;
}

__attribute__((unused)) static struct reader_source bytes_source(
	struct bytes_file *f)
{
	return (struct reader_source){
		.size = f->len,
		.read = bytes_read,
		.arg = f,
	};
}

/* Scan a copy of exactly len bytes, so that ASan sees reads behind it. */
__attribute__((unused)) static int scan_bytes(const void *p, size_t len,
					      const char *name,
					      struct tensor_table **out)
{
	uint8_t *copy = malloc(len + 1);
	struct bytes_file f = { .p = copy, .len = len };
	struct reader_source source = bytes_source(&f);
	int rc;

	CHECK(copy);
	memcpy(copy, p, len);
	rc = tensor_table_scan(&source, name, out);
	free(copy);
	return rc;
}

__attribute__((unused)) static void check_dims(const uint64_t *a,
					       const uint64_t *b, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		CHECK_EQ(a[i], b[i]);
}

__attribute__((unused)) static void check_same_tensor(const struct tensor *a,
						      const struct tensor *b)
{
	CHECK_STR(a->name, b->name);
	CHECK_EQ(a->type, b->type);
	CHECK_STR(a->type_name ? a->type_name : "",
		  b->type_name ? b->type_name : "");
	CHECK_EQ(a->shared, b->shared);
	CHECK_EQ(a->n_dims, b->n_dims);
	check_dims(a->shape, b->shape, a->n_dims);
	CHECK_EQ(a->n_pieces, b->n_pieces);
	for (unsigned i = 0; i < a->n_pieces; i++) {
		const struct tensor_piece *p = &a->pieces[i];
		const struct tensor_piece *q = &b->pieces[i];

		CHECK_STR(p->file ? p->file : "", q->file ? q->file : "");
		CHECK_EQ(p->coding, q->coding);
		CHECK_EQ(p->swapped, q->swapped);
		CHECK_EQ(p->off, q->off);
		CHECK_EQ(p->len, q->len);
		check_dims(p->start, q->start, a->n_dims);
		check_dims(p->shape, q->shape, a->n_dims);
		if (p->coding == TENSOR_PLAIN)
			check_dims(p->stride, q->stride, a->n_dims);
	}
}

__attribute__((unused)) static void check_same_table(
	const struct tensor_table *a, const struct tensor_table *b)
{
	CHECK_STR(tensor_table_format(a), tensor_table_format(b));
	CHECK_EQ(tensor_table_count(a), tensor_table_count(b));
	for (size_t i = 0; i < tensor_table_count(a); i++)
		check_same_tensor(tensor_table_at(a, i), tensor_table_at(b, i));
}

#endif
