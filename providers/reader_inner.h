/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files within files, as sources: a range, a deflated .npy, a file that holds
 * one tensor. For the gather and the resolver; one thread each.
 */
#ifndef CKPT_PROVIDERS_READER_INNER_H
#define CKPT_PROVIDERS_READER_INNER_H

#include "providers/reader_npy.h"
#include "providers/reader_table.h"

/* [off, off + len) of another source. */
struct range_source {
	const struct reader_source *of;
	uint64_t off;
};

/*
 * *out reads through *range, and both through of: they outlive it.
 *
 *   -EBADMSG  of is shorter
 */
MUST_CHECK int range_source(struct range_source *range,
			    const struct reader_source *of, uint64_t off,
			    uint64_t len, struct reader_source *out);

struct inflater;

/*
 * The .npy that [off, off + len) of source, raw deflate, inflates to: *out is
 * all of it, *header its header. Reading is cheap front to back only: a step
 * back begins anew. source outlives it; inflater_free().
 *
 *   -EBADMSG  no .npy (also of a read: the data are damaged, or too short)
 *   -ENOMEM, and what the source's read returned
 */
MUST_CHECK int inflater_new(const struct reader_source *source, uint64_t off,
			    uint64_t len, struct inflater **inflater,
			    struct npy_header *header,
			    struct reader_source *out);

/* NULL is fine. */
void inflater_free(struct inflater *inflater);

/*
 * The table of the file that *range is, with exactly one tensor, which is one
 * PLAIN piece of that file, of t's type and p's shape.
 *
 *   -EBADMSG  it is not that
 *   others    as tensor_table_scan()
 */
MUST_CHECK int nested_scan(const struct reader_source *range,
			   const struct tensor *t, const struct tensor_piece *p,
			   struct tensor_table **out);

#endif
