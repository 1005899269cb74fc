/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier that keeps backing files in a directory: DRAM (tmpfs or /dev/shm)
 * and NVMe. A backing file is named by a 64-bit id, 16 hex digits, and holds
 * nothing but a version's bytes.
 *
 * Times: what the daemon does to a backing file (fallocate, punch, truncate)
 * moves mtime and ctime; the functions here that touch a file in use keep
 * mtime (fstat, do it, futimens).
 */
#ifndef CKPT_ENGINE_TIER_H
#define CKPT_ENGINE_TIER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "metadata/compiler.h"

#define CHUNK_LEN (4u << 20) /* unit of checksum, flush, upload */
#define N_CHUNKS(size) (((size) + CHUNK_LEN - 1) / CHUNK_LEN)

struct tier;

/*
 * One write of the flush path. buf is memory-aligned to 4096, off too; len is
 * a multiple of 4096 except where direct is false.
 */
struct tier_io {
	int fd;
	const void *buf;
	size_t len;
	uint64_t off;
	size_t first_len; /* 0; else the first attempt writes no more than
			     this: how tier_faulty makes a write short */
	int res;          /* 0 or -errno, valid in done() */
	void (*done)(struct tier_io *io);
	void *arg;
};

struct tier_room {
	uint64_t total;    /* bytes of the filesystem or limit */
	uint64_t avail;    /* bytes that can still be promised */
	uint64_t used;     /* bytes of our backing files */
	uint64_t promised; /* leases beyond what is written */
};

struct tier_ops {
	const char *name; /* dram, nvme */

	/* A fresh empty file, 0600. flags: O_RDONLY (somebody else will write
	 * it) or O_RDWR. -EEXIST, -ENOSPC, -EIO … */
	int (*create)(struct tier *t, uint64_t id, int flags, int *fd);
	/* flags: O_RDONLY, O_RDWR, O_DIRECT … -ENOENT: not on this tier */
	int (*open)(struct tier *t, uint64_t id, int flags, int *fd);
	/* Remove the name; -ENOENT is success. */
	int (*remove)(struct tier *t, uint64_t id);
	/* Set aside real room for [off, off + len) of the file; keeps its
	 * size, and its times unless it grows meanwhile. -ENOSPC: there is
	 * none. */
	int (*preallocate)(struct tier *t, int fd, uint64_t off, uint64_t len);
	/* Give back what is allocated behind size, or behind the end of the
	 * file if that is greater; keeps size and times. Nobody may be able
	 * to write the file: what a write puts there meanwhile is lost. */
	int (*trim)(struct tier *t, int fd, uint64_t size);
	/*
	 * Start one write; done() runs exactly once iff this returns 0, from
	 * any thread, possibly before the return, and must not start a write
	 * itself. At most `depth` are in flight on a tier: blocks until one
	 * may start.
	 */
	int (*write)(struct tier *t, struct tier_io *io);
	/* Data of one file on stable storage. */
	int (*sync)(struct tier *t, int fd);
	/* Names on stable storage: call once after many files. */
	int (*sync_names)(struct tier *t);
	/* used is counted at most once a second. promised is 0: what is
	 * preallocated counts as used; leases are their owner's to add. */
	int (*room)(struct tier *t, struct tier_room *out);
	/* Every backing file, for start-up. fn non-zero stops. */
	int (*each)(struct tier *t,
		    int (*fn)(void *arg, uint64_t id, uint64_t blocks),
		    void *arg);
	void (*close)(struct tier *t); /* NULL not allowed */
};

/* First member of each tier's own struct. */
struct tier {
	const struct tier_ops *ops;
	const char *dir; /* immutable; owned */
	const char *io;  /* how writes are done: "io_uring" or "threads", and
			    why; for the status */
};

/*
 * dir exists. DRAM: limit is the tier's size (the tmpfs has headroom above
 * it); room() counts against it.
 */
MUST_CHECK int tier_dram_open(const char *dir, uint64_t limit,
			      struct tier **out);
/* limit 0: the filesystem's size. Unlinked: at start-up nothing is deleted. */
MUST_CHECK int tier_nvme_open(const char *dir, uint64_t limit,
			      struct tier **out);
/*
 * A tier that fails on purpose, round a real one, which it owns from then on.
 * spec: "write:error=EIO:after=10:times=3,sync:delay=50ms,write:short,
 * write:torn,write:flip,preallocate:full" (FORMAT in tier_faulty.c).
 *   -EINVAL  cannot parse; real stays the caller's
 */
MUST_CHECK int tier_faulty_open(struct tier *real, const char *spec,
				struct tier **out);

#endif
