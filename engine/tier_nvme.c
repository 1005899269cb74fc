/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NVMe tier: files on a local filesystem, written past the page cache by
 * a ring. Where the filesystem refuses O_DIRECT the same code writes through
 * the page cache; only the speed differs, and tier.io says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "engine/ring.h"
#include "engine/tier_file.h"
#include "metadata/fault.h"

#define BLOCK_LEN 4096

struct tier_nvme {
	struct tier_file file;
	struct ring *ring;
	bool direct;
};

static struct tier_nvme *nvme_of(struct tier *t)
{
	return CONTAINER_OF(tier_file_of(t), struct tier_nvme, file);
}

static int nvme_open(struct tier *t, uint64_t id, int flags, int *fd)
{
	if (!nvme_of(t)->direct)
		flags &= ~O_DIRECT;
	return tier_file_open(t, id, flags, fd);
}

/*
 * ext4 ignores a punch behind the end of a file, so this truncates to the size
 * it has: nobody may be growing the file.
 */
static int nvme_trim(struct tier *t, int fd, uint64_t size)
{
	struct stat st;

	(void)t;
	(void)size;
	if (fstat(fd, &st))
		return -errno;
	if (ftruncate(fd, st.st_size))
		return -errno;
	return tier_file_keep_times(fd, &st);
}

static int nvme_write(struct tier *t, struct tier_io *io)
{
	struct ring *ring = nvme_of(t)->ring;

	return ring->ops->write(ring, io);
}

static int nvme_sync(struct tier *t, int fd)
{
	int err = FAULT("tier.sync", -EIO);

	(void)t;
	if (err)
		return err;
	return fdatasync(fd) ? -errno : 0;
}

static int nvme_sync_names(struct tier *t)
{
	int err = FAULT("tier.sync_names", -EIO);

	if (err)
		return err;
	return fsync(tier_file_of(t)->dir_fd) ? -errno : 0;
}

static int nvme_room(struct tier *tier, struct tier_room *out)
{
	struct tier_file *t = tier_file_of(tier);
	struct tier_room room = { 0 };
	struct statvfs v;
	uint64_t left;
	int rc;

	if (fstatvfs(t->dir_fd, &v))
		return -errno;
	rc = tier_file_used(t, &room.used);
	if (rc)
		return rc;
	room.total = (uint64_t)v.f_blocks * v.f_frsize;
	room.avail = (uint64_t)v.f_bavail * v.f_frsize;
	if (t->limit) {
		left = t->limit > room.used ? t->limit - room.used : 0;
		if (room.total > t->limit)
			room.total = t->limit;
		if (room.avail > left)
			room.avail = left;
	}
	*out = room;
	return 0;
}

static void nvme_close(struct tier *t)
{
	struct tier_nvme *n = nvme_of(t);

	if (n->ring)
		n->ring->ops->close(n->ring);
	tier_file_fini(&n->file);
	free(n);
}

static const struct tier_ops nvme_ops = {
	.name = "nvme",
	.create = tier_file_create,
	.open = nvme_open,
	.remove = tier_file_remove,
	.preallocate = tier_file_preallocate,
	.trim = nvme_trim,
	.write = nvme_write,
	.sync = nvme_sync,
	.sync_names = nvme_sync_names,
	.room = nvme_room,
	.each = tier_file_each,
	.close = nvme_close,
};

/*
 * Some filesystems refuse O_DIRECT at open, others at the first write.
 *   -errno  nothing can be written there at all
 */
static int probe_direct(int dir_fd, bool *direct)
{
	static const char name[] = "probe-direct";
	CLEANUP(close_p) int fd = -1;
	CLEANUP(free_p) void *block = NULL;
	ssize_t n;

	if (posix_memalign(&block, BLOCK_LEN, BLOCK_LEN))
		return -ENOMEM;
	memset(block, 0, BLOCK_LEN);
	fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	(void)unlinkat(dir_fd, name, 0);
	if (fcntl(fd, F_SETFL, O_DIRECT)) {
		*direct = false;
		return 0;
	}
	n = pwrite(fd, block, BLOCK_LEN, 0);
	/* A full disk says nothing about O_DIRECT. */
	*direct = n == BLOCK_LEN || (n < 0 && errno == ENOSPC);
	return 0;
}

static int nvme_init(struct tier_nvme *n)
{
	struct tier_file *t = &n->file;
	size_t len;
	int rc;

	rc = probe_direct(t->dir_fd, &n->direct);
	if (rc)
		return rc;
	rc = ring_open(RING_DEPTH, &n->ring, t->io, sizeof(t->io));
	if (rc)
		return rc;
	len = strlen(t->io);
	if (!n->direct)
		snprintf(t->io + len, sizeof(t->io) - len,
			 ", through the page cache (O_DIRECT refused)");
	return 0;
}

int tier_nvme_open(const char *dir, uint64_t limit, struct tier **out)
{
	struct tier_nvme *n = calloc(1, sizeof(*n));
	int rc;

	if (!n)
		return -ENOMEM;
	rc = tier_file_init(&n->file, &nvme_ops, dir, limit);
	if (!rc)
		rc = nvme_init(n);
	if (rc) {
		nvme_close(&n->file.base);
		return rc;
	}
	*out = &n->file.base;
	return 0;
}
