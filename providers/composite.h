/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The capture's side of a composite: where each child lies in the file, and
 * which chunk comes next. A capture holds exactly one, its root.
 *
 * Threads: as struct ckpt_provider_ops says; composite_place() before all.
 */
#ifndef CKPT_PROVIDERS_COMPOSITE_H
#define CKPT_PROVIDERS_COMPOSITE_H

#include <stdbool.h>

#include "providers/ckpt.h"
#include "providers/compiler.h"

/* A chunk and its place in the file. */
struct placed_chunk {
	struct ckpt_chunk chunk; /* as the child gave it, from is set */
	uint64_t off;            /* in the file */
};

/*
 * Give every child of known size its place. *known_len: where they end.
 *
 *   -EINVAL  align is no power of two, or the sizes go beyond 2^63
 */
MUST_CHECK int composite_place(struct ckpt_provider *root, uint64_t *known_len);

/*
 * The next chunk of a kind. OBJECT places the children of unknown size, in
 * order; TRAILER what is then still without a place.
 *
 *   1, 0, -errno  as ops->next
 *   -EFAULT       a child broke its contract (a chunk outside its range, or a
 *                 size that stays unknown)
 */
MUST_CHECK int composite_next(struct ckpt_provider *root, enum ckpt_kind kind,
			      size_t max, struct placed_chunk *out);

/* Where the file ends; all of it once OBJECT and TRAILER have ended. */
uint64_t composite_len(struct ckpt_provider *root);

/* check() of all children that have it: the first that is not 0. */
MUST_CHECK int composite_check(struct ckpt_provider *root);
bool composite_has_check(struct ckpt_provider *root);
bool composite_has_device(struct ckpt_provider *root);

/* The name of the child that failed last in composite_next(), or NULL. */
const char *composite_culprit(struct ckpt_provider *root);

#endif
