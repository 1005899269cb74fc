/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling a tensor_table: for the scan, the record and the resolver. One
 * thread; the table is the caller's to free whatever these return.
 */
#ifndef CKPT_PROVIDERS_READER_BUILD_H
#define CKPT_PROVIDERS_READER_BUILD_H

#include "providers/reader_table.h"

/*
 * Empty. size: of the file that pieces without a file lie in, UINT64_MAX if not
 * known.
 *
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_new(const struct reader_ops *ops, uint64_t size,
				struct tensor_table **out);

/*
 * Check t and keep a copy; pieces without elements are left out. A tensor_found
 * whose arg is the table.
 *
 *   -ENOMSG  t is impossible (reader_check.h)
 *   -E2BIG   beyond READER_MEMORY_MAX or READER_TENSORS_MAX
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_add(void *table, const struct tensor *t);

/*
 * All are in: from now on it can be searched.
 *
 *   -ENOMSG  two have one name
 *   -ENOMEM
 */
MUST_CHECK int tensor_table_finish(struct tensor_table *table);

/*
 * Scan with one format, whether it knows the file or not.
 *
 *   errors as reader_ops.scan()
 */
MUST_CHECK int tensor_table_scan_as(const struct reader_ops *ops,
				    const struct reader_source *source,
				    struct tensor_table **out);

#endif
