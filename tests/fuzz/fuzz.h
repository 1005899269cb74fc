/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzzers share: the input as a source that traps reads outside of it,
 * and using a table in every way there is.
 */
#ifndef CKPT_TESTS_FUZZ_FUZZ_H
#define CKPT_TESTS_FUZZ_FUZZ_H

#include <errno.h>
#include <string.h>

#include "providers/reader_build.h"
#include "providers/reader_gather.h"

struct fuzz_input {
	const uint8_t *p;
	size_t len;
};

static inline int fuzz_read(void *arg, void *buf, size_t len, uint64_t off)
{
	const struct fuzz_input *in = arg;

	if (off > in->len || len > in->len - off)
		__builtin_trap();
	if (len)
		memcpy(buf, in->p + off, len);
	return 0;
}

static inline struct reader_source fuzz_source(struct fuzz_input *in)
{
	return (struct reader_source){
		.size = in->len,
		.read = fuzz_read,
		.arg = in,
	};
}

/* Other files are the input too, but for some that are not there. */
static inline int fuzz_open(void *arg, const char *file,
			    struct reader_source *out)
{
	if (file && strchr(file, '?'))
		return -ENOENT;
	*out = fuzz_source(arg);
	return 0;
}

/* A few ranges of the image, which may be much larger than the input. */
static inline void fuzz_gather(struct fuzz_input *in, const struct tensor *t)
{
	uint64_t total = tensor_len(t), at[] = { 0, total / 3 + 1, total };
	const struct tensor_piece *run;
	uint8_t buf[4096];

	if (tensor_is_run(t, &run) && run->len != total)
		__builtin_trap();
	if (tensor_npy_header(t, buf, sizeof(buf)) % 64)
		__builtin_trap();
	for (unsigned i = 0; i < 3; i++) {
		uint64_t off = i == 2 && total > 1001 ? total - 1001 : at[i];
		size_t len = sizeof(buf);
		int rc;

		if (off > total)
			off = total;
		if (len > total - off)
			len = (size_t)(total - off);
		rc = tensor_gather(t, fuzz_open, in, buf, len, off);
		if (rc && rc != -EBADMSG && rc != -ENOENT && rc != -ENOMEM)
			__builtin_trap();
	}
}

static inline void fuzz_tensors(struct fuzz_input *in,
				const struct tensor_table *table)
{
	size_t n = tensor_table_count(table);

	for (size_t i = 0; i < n; i++) {
		const struct tensor *t = tensor_table_at(table, i);

		if (tensor_table_find(table, t->name) != t)
			__builtin_trap();
		if (i < 8)
			fuzz_gather(in, t);
	}
}

/* What a table becomes in a record comes out of it again. */
static inline void fuzz_record(const struct tensor_table *table)
{
	struct tensor_table *again = NULL;
	uint8_t *record = NULL, *second = NULL;
	size_t len, second_len;

	if (tensor_table_encode(table, &record, &len))
		return;
	if (tensor_table_decode(record, len, &again) ||
	    tensor_table_encode(again, &second, &second_len) ||
	    len != second_len || memcmp(record, second, len) != 0)
		__builtin_trap();
	free(record);
	free(second);
	tensor_table_free(again);
}

static inline void fuzz_table(struct fuzz_input *in,
			      const struct tensor_table *table)
{
	struct tensor_table *resolved = NULL;

	fuzz_tensors(in, table);
	fuzz_record(table);
	if (tensor_table_count(table) > 100 ||
	    tensor_table_resolve(table, fuzz_open, in, &resolved))
		return;
	if (tensor_table_count(resolved) != tensor_table_count(table))
		__builtin_trap();
	fuzz_tensors(in, resolved);
	fuzz_record(resolved);
	tensor_table_free(resolved);
}

#endif
