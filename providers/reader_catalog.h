/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors collected in a scan before they are handed out, for a format whose
 * names may meet and whose tensors may share bytes: the catalog makes names
 * unique and finds out who shares.
 *
 * One thread. Names are copied.
 */
#ifndef CKPT_PROVIDERS_READER_CATALOG_H
#define CKPT_PROVIDERS_READER_CATALOG_H

#include "providers/reader.h"

struct catalog;

/* One tensor in the scanned file itself. */
struct catalog_item {
	enum tensor_type type;
	unsigned n_dims;
	bool swapped;
	uint64_t off; /* as of a PLAIN piece; both 0 if it has no elements */
	uint64_t len;
	uint64_t shape[TENSOR_DIMS_MAX];
	uint64_t stride[TENSOR_DIMS_MAX];
};

/* -ENOMEM */
MUST_CHECK int catalog_new(size_t memory, struct catalog **out);
void catalog_free(struct catalog *c);
void catalog_freep(struct catalog **c);

/*
 * Add a tensor. name: UTF-8, not empty, len bytes without NUL.
 *
 *   -E2BIG   the catalog takes more than `memory` bytes
 *   -ENOMEM
 */
MUST_CHECK int catalog_add(struct catalog *c, const char *name, size_t len,
			   const struct catalog_item *item);

/*
 * Hand out all, in the order of their coming. Of those with the same name the
 * second is called name#2, the next name#3 and so on, leaving out what
 * another is called. Once.
 *
 *   -ENOMEM, and what found returned
 */
MUST_CHECK int catalog_report(struct catalog *c, tensor_found *found,
			      void *arg);

#endif
