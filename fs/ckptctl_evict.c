/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `evict`: drops faster copies of what is safe on a slower tier.
 */
#include <inttypes.h>
#include <stdio.h>

#include "fs/ckptctl.h"

static int usage_level(enum ctl_level level)
{
	if (level != CTL_DRAM)
		return 0;
	(void)ctl_fail("evict --level dram means nothing: give nvme (frees "
		       "DRAM) or remote (frees NVMe too)");
	return CTL_USAGE;
}

int ctl_evict(const struct ctl_args *args)
{
	enum ctl_level level = args->level == CTL_NO_LEVEL ? CTL_NVME
							   : args->level;
	struct control_msg m = { .op = CONTROL_EVICT, .arg = level };
	char bytes[CTL_BYTES_LEN];
	struct ctl_mount mnt;
	int status = usage_level(level);

	if (!status)
		status = ctl_mount_open(args->path, &mnt);
	if (status)
		return status;
	m.ino = mnt.ino;
	if (ctl_call(&mnt, &m))
		status = CTL_ERROR;
	else if (m.err)
		status = ctl_fail("cannot evict '%s': %s", mnt.path,
				  ctl_error_text(m.err));
	else if (args->json)
		printf("{\"bytes\":%" PRIu64 ",\"files\":%" PRIu64 "}\n",
		       m.total, m.arg);
	else
		printf("freed %s, %" PRIu64 " file%s\n",
		       ctl_bytes(m.total, bytes), m.arg, m.arg == 1 ? "" : "s");
	ctl_mount_close(&mnt);
	return status;
}
