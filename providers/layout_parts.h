/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the layouts share: providers that they own until they hand them on, and
 * arrays that grow. Internal.
 */
#ifndef CKPT_PROVIDERS_LAYOUT_PARTS_H
#define CKPT_PROVIDERS_LAYOUT_PARTS_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "providers/compiler.h"
#include "providers/layout.h"

/* NULL is fine. */
static inline void let_go(struct ckpt_provider *p)
{
	if (p)
		p->ops->release(p);
}

/* For CLEANUP(). */
static inline void provider_freep(struct ckpt_provider **p)
{
	let_go(*p);
}

/* Room for one more behind n elements of len bytes; array: where the pointer to
 * them is. 0 or -ENOMEM. */
MUST_CHECK static inline int reserve(void *array, size_t n, size_t *n_room,
				     size_t len)
{
	size_t n_more = *n_room ? 2 * *n_room : 64;
	void *at;

	if (n < *n_room)
		return 0;
	memcpy(&at, array, sizeof(at)); /* a pointer of some other type */
	at = reallocarray(at, n_more, len);
	if (!at)
		return -ENOMEM;
	memcpy(array, &at, sizeof(at));
	*n_room = n_more;
	return 0;
}

#endif
