/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of one file, kept: collected from a scan, found by name, written
 * to and read from a record (metadata's `tensor` column family, byte by byte in
 * metadata/FORMAT.md). The record is checked like any input when it is read.
 *
 * Ownership: the table owns all it points to. Threads: one at a time until it
 * is filled; then any number of readers.
 */
#ifndef CKPT_PROVIDERS_READER_TABLE_H
#define CKPT_PROVIDERS_READER_TABLE_H

#include "providers/reader.h"

#define TENSOR_RECORD_VERSION 1

struct tensor_table;

/* Scan source into a new table; errors as reader_scan(). */
MUST_CHECK int tensor_table_scan(const struct reader_source *source,
				 const char *name, struct tensor_table **out);

/* NULL is fine. */
void tensor_table_free(struct tensor_table *table);

/* For CLEANUP. */
static inline void tensor_table_freep(struct tensor_table **table)
{
	tensor_table_free(*table);
}

/* The format, and its name ("torch"). */
const struct reader_ops *tensor_table_ops(const struct tensor_table *table);
const char *tensor_table_format(const struct tensor_table *table);

/* How many; and number i of them, in the order of the file. */
size_t tensor_table_count(const struct tensor_table *table);
/* Bytes that it takes, nearly. */
uint64_t tensor_table_memory(const struct tensor_table *table);
const struct tensor *tensor_table_at(const struct tensor_table *table,
				     size_t i);

/* By name, in O(log n); NULL if there is none. */
const struct tensor *tensor_table_find(const struct tensor_table *table,
				       const char *name);

/*
 * A new table in which pieces that are NESTED or BY_NAME are replaced by what
 * the files that they name hold now: places, and for BY_NAME type and shape.
 * What cannot be found there (no such file: open's -ENOENT; no such tensor; a
 * broken file) stays as it is. table is left alone.
 *
 *   -ENOMEM, -E2BIG, and what open (but -ENOENT) or a read returned
 */
MUST_CHECK int tensor_table_resolve(const struct tensor_table *table,
				    tensor_open *open, void *arg,
				    struct tensor_table **out);

/*
 * As bytes, little-endian; *out is the caller's, free().
 *
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_encode(const struct tensor_table *table,
				   uint8_t **out, size_t *out_len);

/*
 *   -EBADMSG      not such a record
 *   -EOPNOTSUPP   a newer TENSOR_RECORD_VERSION, or a format not known here
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_decode(const uint8_t *record, size_t len,
				   struct tensor_table **out);

#endif
