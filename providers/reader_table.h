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

/* Name of the format ("torch"), as in struct reader_ops. */
const char *tensor_table_format(const struct tensor_table *table);

/* How many; and number i of them, in the order of the file. */
size_t tensor_table_count(const struct tensor_table *table);
const struct tensor *tensor_table_at(const struct tensor_table *table,
				     size_t i);

/* By name; NULL if there is none. */
const struct tensor *tensor_table_find(const struct tensor_table *table,
				       const char *name);

/*
 * As bytes, little-endian; *out is the caller's, free().
 *
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_encode(const struct tensor_table *table,
				   uint8_t **out, size_t *out_len);

/*
 *   -EBADMSG      not such a record
 *   -EOPNOTSUPP   a newer TENSOR_RECORD_VERSION
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_decode(const uint8_t *record, size_t len,
				   struct tensor_table **out);

#endif
