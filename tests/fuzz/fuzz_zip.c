/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes at all as a zip: its directory, every member, and what the formats
 * that are made of one find in it.
 */
#include "fuzz.h"
#include "providers/reader_formats.h"
#include "providers/reader_zip.h"

#define MEMORY (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check(int err)
{
	if (err && err != -ENOMSG && err != -E2BIG && err != -ENOMEM)
		__builtin_trap();
}

/* Members lie in the file and share no byte of it. */
static void use_member(struct fuzz_input *in, struct zip *z, size_t i,
		       uint8_t *taken)
{
	const struct zip_member *m = zip_at(z, i);
	uint8_t *bytes = NULL, head[100];
	uint64_t off;
	size_t found, got;
	int err = zip_place(z, i, &off);

	if (!zip_find(z, m->name, m->name_len, &found) || found != i)
		__builtin_trap();
	check(err);
	if (!err) {
		if (off > in->len || m->packed > in->len - off)
			__builtin_trap();
		for (uint64_t at = off; at < off + m->packed; at++)
			if (taken[at]++)
				__builtin_trap();
	}
	check(zip_head(z, i, head, sizeof(head), &got));
	err = zip_read(z, i, MEMORY, &bytes, &got);
	check(err);
	if (!err && got != m->size)
		__builtin_trap();
	free(bytes);
}

static void use_format(struct fuzz_input *in, const struct reader_ops *format)
{
	struct reader_source source = fuzz_source(in);
	struct tensor_table *table = NULL;
	int err = tensor_table_scan_as(format, &source, &table);

	check(err);
	if (!err)
		fuzz_table(in, table);
	tensor_table_free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz_input in = { data, len };
	struct reader_source source = fuzz_source(&in);
	uint8_t *taken = calloc(len + 1, 1);
	struct zip *z = NULL;
	int err = zip_open(&source, MEMORY, &z);

	check(err);
	for (size_t i = 0; !err && i < zip_count(z); i++)
		use_member(&in, z, i, taken);
	zip_free(z);
	free(taken);
	if (!err) {
		use_format(&in, &reader_torch);
		use_format(&in, &reader_npz);
	}
	return 0;
}
