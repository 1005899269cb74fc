/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `leftovers`: DRAM that daemons which died left behind. A daemon that was
 * killed leaves what was not on NVMe yet, and the next mount of that state
 * carries on with it; where there will be none, this frees it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/reserve.h"
#include "fs/ckptctl.h"

struct listing {
	bool json;
	unsigned n;
};

static int print_one(void *arg, const char *base, uint64_t bytes)
{
	struct listing *l = arg;
	char text[CTL_BYTES_LEN];

	if (l->json)
		printf("%s{\"base\":\"%s\",\"bytes\":%" PRIu64 "}",
		       l->n ? "," : "", base, bytes);
	else
		printf("%10s  %s\n", ctl_bytes(bytes, text), base);
	l->n++;
	return 0;
}

static int list(bool json)
{
	struct listing l = { .json = json };
	int err;

	if (json)
		printf("[");
	err = dram_place_leftovers(print_one, &l);
	if (json)
		printf("]\n");
	if (err)
		return ctl_fail("cannot look for leftovers: %s",
				strerror(-err));
	if (!l.n && !json)
		printf("nothing is left over\n");
	else if (!json)
		printf("Mounting the same state again carries on with it; "
		       "--free BASE loses it.\n");
	return CTL_OK;
}

int ctl_leftovers(const struct ctl_args *args)
{
	int err;

	if (!args->free_base)
		return list(args->json);
	err = dram_place_free(args->free_base);
	if (err == -EINVAL)
		return ctl_fail("'%s' is not a leftover (see ckptctl "
				"leftovers)",
				args->free_base);
	if (err == -EBUSY)
		return ctl_fail("'%s' is in use: its daemon lives",
				args->free_base);
	if (err)
		return ctl_fail("cannot free '%s': %s", args->free_base,
				strerror(-err));
	return CTL_OK;
}
