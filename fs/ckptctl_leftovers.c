/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `leftovers`: DRAM that daemons which died left behind. A daemon that was
 * killed leaves what was not on NVMe yet, and the next mount of that state
 * carries on with it; where there will be none, this frees it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/reserve.h"
#include "fs/ckptctl.h"

static int add_one(void *arg, const char *base, const char *nvme,
		   uint64_t bytes)
{
	json_t *list = arg;

	return json_array_append_new(list,
				     json_pack("{s:o,s:I,s:o}", "base",
					       ctl_json_name(base), "bytes",
					       (json_int_t)bytes, "nvme",
					       ctl_json_name(nvme)))
		       ? -ENOMEM
		       : 0;
}

static int print_one(void *arg, const char *base, const char *nvme,
		     uint64_t bytes)
{
	char text[CTL_BYTES_LEN];
	unsigned *n = arg;

	printf("%10s  ", ctl_bytes(bytes, text));
	ctl_print_name(base);
	fputs("  of nvme=", stdout);
	ctl_print_name(nvme[0] ? nvme : "?");
	putchar('\n');
	++*n;
	return 0;
}

static int list_json(void)
{
	json_t *list = json_array();
	int err = dram_place_leftovers(add_one, list);

	if (!err && !json_dumpf(list, stdout, JSON_COMPACT))
		putchar('\n');
	json_decref(list);
	return err;
}

static int list_text(void)
{
	unsigned n = 0;
	int err = dram_place_leftovers(print_one, &n);

	if (!err)
		puts(n ? "Mounting the same state again carries on with it; "
			 "--free BASE loses it."
		       : "nothing is left over");
	return err;
}

int ctl_leftovers(const struct ctl_args *args)
{
	int err;

	if (!args->free_base) {
		err = args->json ? list_json() : list_text();
		return err ? ctl_fail("cannot look for leftovers: %s",
				      strerror(-err))
			   : CTL_OK;
	}
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
