/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands in for ring_uring.c in a build without liburing.
 */
#include <errno.h>
#include <stdio.h>

#include "engine/ring.h"

static int none_open(unsigned depth, struct ring **out, char *why,
		     size_t why_len)
{
	(void)depth;
	(void)out;
	snprintf(why, why_len, "built without liburing");
	return -EOPNOTSUPP;
}

const struct ring_ops ring_uring_ops = {
	.name = "io_uring",
	.open = none_open,
};
