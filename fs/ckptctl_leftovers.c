/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `leftovers`: DRAM that daemons which died left behind. A daemon that was
 * killed leaves what was not on NVMe yet, and the next mount of that state
 * carries on with it; where there will be none, this frees it.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/reserve.h"
#include "fs/ckptctl.h"

struct listing {
	bool json;
	unsigned n;
};

/* Which state it belongs to: nvme= of its daemon, "" if that is not known. */
static void whose(const char *base, char nvme[PATH_MAX])
{
	char path[PATH_MAX], line[PATH_MAX];
	FILE *f;

	nvme[0] = '\0';
	snprintf(path, sizeof(path), "%s/owner", base);
	f = fopen(path, "re");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "nvme ", 5))
			snprintf(nvme, PATH_MAX, "%s", line + 5);
	}
	fclose(f);
}

static int print_one(void *arg, const char *base, uint64_t bytes)
{
	struct listing *l = arg;
	char text[CTL_BYTES_LEN], nvme[PATH_MAX];

	whose(base, nvme);
	if (l->json)
		printf("%s{\"base\":\"%s\",\"bytes\":%" PRIu64
		       ",\"nvme\":\"%s\"}",
		       l->n ? "," : "", base, bytes, nvme);
	else
		printf("%10s  %s  of nvme=%s\n", ctl_bytes(bytes, text), base,
		       nvme[0] ? nvme : "?");
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
