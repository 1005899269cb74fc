/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the dram and the nvme tier share: a directory of files named by 16 hex
 * digits. Everything else in the directory (the ballast, a probe) is passed
 * over. For tier_dram.c and tier_nvme.c only.
 */
#ifndef CKPT_ENGINE_TIER_FILE_H
#define CKPT_ENGINE_TIER_FILE_H

#include <stdatomic.h>
#include <sys/stat.h>

#include "engine/tier.h"

#define TIER_NAME_LEN 17 /* with the NUL */

struct tier_file {
	struct tier base;
	int dir_fd;
	uint64_t limit; /* 0: the filesystem's */
	char io[160];   /* what base.io points to */

	struct mutex lock;
	uint64_t used;    /* counted, then kept up roughly; by lock */
	int64_t count_at; /* when to count again; by lock */

	atomic_flag said_no_room_kept; /* fallocate is not there */
};

/*
 * Opens dir for a tier with these operations; t is zeroed memory.
 *   -ENOENT, -ENOTDIR, -EACCES, …
 */
MUST_CHECK int tier_file_init(struct tier_file *t, const struct tier_ops *ops,
			      const char *dir, uint64_t limit);
void tier_file_fini(struct tier_file *t);

/* As the operations in tier.h. */
int tier_file_create(struct tier *t, uint64_t id, int flags, int *fd);
int tier_file_open(struct tier *t, uint64_t id, int flags, int *fd);
int tier_file_remove(struct tier *t, uint64_t id);
int tier_file_preallocate(struct tier *t, int fd, uint64_t off, uint64_t len);
int tier_file_each(struct tier *t,
		   int (*fn)(void *arg, uint64_t id, uint64_t blocks),
		   void *arg);

/*
 * Bytes that our files take. Counted at most once a second; in between,
 * preallocations and removals are followed, other writes are not.
 */
MUST_CHECK int tier_file_used(struct tier_file *t, uint64_t *out);
/* Put back the times that st had (the daemon's own changes do not count). */
MUST_CHECK int tier_file_keep_times(int fd, const struct stat *st);

static inline struct tier_file *tier_file_of(struct tier *t)
{
	return CONTAINER_OF(t, struct tier_file, base);
}

#endif
