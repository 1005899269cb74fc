/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying a box of elements out of a source into memory, each side with strides
 * of its own. For the gather; one thread.
 */
#ifndef CKPT_PROVIDERS_READER_COPY_H
#define CKPT_PROVIDERS_READER_COPY_H

#include "providers/reader.h"

#define COPY_WINDOW (4 << 20) /* bytes that are read at once to pick from */

struct strided {
	unsigned n; /* dimensions */
	uint64_t shape[TENSOR_DIMS_MAX];
	uint64_t from[TENSOR_DIMS_MAX]; /* strides, elements */
	uint64_t to[TENSOR_DIMS_MAX];
};

struct copier {
	const struct reader_source *source;
	size_t each;     /* bytes of an element */
	size_t swap;     /* bytes of what is big-endian in it; 0: nothing is */
	uint8_t *window; /* made when it is needed; copier_fini() */
	size_t window_len;
};

/*
 * Copy the box whose first element lies at off in the source to `to`. Sorts and
 * merges box's dimensions.
 *
 *   -ENOMEM, and what the source's read returned
 */
MUST_CHECK int copier_copy(struct copier *c, struct strided *box, uint64_t off,
			   uint8_t *to);

/* Frees the window; the source is the caller's. */
void copier_fini(struct copier *c);

#endif
