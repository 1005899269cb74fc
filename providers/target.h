/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that a capture fills: a temporary name in the same directory, room
 * ahead of the writers, writes or stores through a mapping, and at the end the
 * rename. Knows what is different on a ckptfs mount (it says how large the file
 * will be and what is filled); everybody else sees one kind of file.
 *
 * Threads: target_room(), target_write(), target_write_staged(),
 * target_filled(), target_reached() any, at once; the others one at a time with
 * nothing else in progress.
 */
#ifndef CKPT_PROVIDERS_TARGET_H
#define CKPT_PROVIDERS_TARGET_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "providers/ckpt.h"
#include "providers/compiler.h"
#include "providers/pool.h"

struct target {
	char *dir, *name, *temp; /* the last two within dir */
	int dir_fd, fd;
	int direct_fd; /* past the page cache; -1: cannot be, or shall not */
	bool on_ckptfs, passthrough, has_remote;
	uint64_t ino;
	dev_t dev;
	uint64_t known_len; /* of the part whose places are fixed */
	char *map;          /* of it, or NULL: not mapped */

	pthread_mutex_t lock;
	uint64_t room;                 /* allocated up to; guarded by lock */
	uint64_t filled_at, filled_to; /* not told yet; guarded by lock */
	uint64_t reached_seq;          /* of target_reached() */
	uint32_t lineage, mount_id;    /* the same */
};

/* Only memory: *t is an empty target for path, which names a file.
 * -EINVAL, -ENAMETOOLONG, -ENOMEM */
MUST_CHECK int target_init(struct target *t, const char *path);
void target_fini(struct target *t);

/*
 * Make the file; known_len bytes have fixed places. map: devices will store
 * into it (t->map stays NULL where that cannot be, and the caller stages).
 * -errno as open(2) and fallocate(2).
 */
MUST_CHECK int target_open(struct target *t, uint64_t known_len, bool map);

/* Storage for all bytes below upto. -ENOSPC, … */
MUST_CHECK int target_room(struct target *t, uint64_t upto);

/* How far storage is allocated. */
uint64_t target_allocated(struct target *t);

/* All of it, at its place. -errno as pwrite(2). */
MUST_CHECK int target_write(struct target *t, const void *buf, size_t len,
			    uint64_t off);

/* Where in a buffer of the pool the bytes for off belong. */
static inline void *target_staged_at(void *buffer, uint64_t off)
{
	return (char *)buffer + off % pool_slack();
}

/* The same of bytes that lie at target_staged_at(buffer, off): on a disk, what
 * fills whole pages goes past the page cache. */
MUST_CHECK int target_write_staged(struct target *t, const void *bytes,
				   size_t len, uint64_t off);

/* [off, off + len) will not change any more. */
void target_filled(struct target *t, uint64_t off, uint64_t len);

/* For fork(): while a file is made, its descriptors have no place yet. */
void targets_lock(void);
void targets_unlock(void);
/* In a forked child: its copies of the descriptors go. */
void target_forget(struct target *t);

/* The file is len bytes long and complete: it gets its name. */
MUST_CHECK int target_commit(struct target *t, uint64_t len);

/* Nothing is left of it. */
void target_abort(struct target *t);

/*
 * Has the committed file reached the level (CKPT_DRAM and more)? On ckptfs
 * waits a moment for it; elsewhere does an fsync.
 *
 *   1, 0         yes, not yet
 *   -EOPNOTSUPP  there is no such level
 *   -ESTALE      the mount has lost it, or is another one
 *   -errno       what is in the way
 */
MUST_CHECK int target_reached(struct target *t, enum ckpt_level level);

#endif
