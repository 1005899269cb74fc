/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The DRAM tier: files on a tmpfs. Nothing here reaches stable storage, so
 * sync does nothing; a write is a memory copy and is done in place.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "engine/ring.h"
#include "engine/tier_file.h"

#define PAGE_LEN UINT64_C(4096)

/*
 * What a write(2) puts behind the end between the look and the punch, which
 * waits for it, would be lost: as with a truncate, nobody may be writing.
 */
static int dram_trim(struct tier *t, int fd, uint64_t size)
{
	struct stat st;
	uint64_t from;

	(void)t;
	if (fstat(fd, &st))
		return -errno;
	from = size > (uint64_t)st.st_size ? size : (uint64_t)st.st_size;
	from = (from + PAGE_LEN - 1) / PAGE_LEN * PAGE_LEN;
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		      (off_t)from, (off_t)((UINT64_C(1) << 62) - from)))
		return -errno;
	return tier_file_keep_times(fd, &st);
}

static int dram_write(struct tier *t, struct tier_io *io)
{
	struct ring_step step;
	ssize_t n;

	(void)t;
	ring_step_init(&step, io);
	do
		n = pwrite(io->fd, (const char *)io->buf + step.done,
			   ring_step_len(&step), (off_t)(io->off + step.done));
	while (!ring_step_over(&step, n < 0 ? -errno : n));
	io->done(io);
	return 0;
}

static int dram_sync(struct tier *t, int fd)
{
	(void)t;
	(void)fd;
	return 0;
}

static int dram_sync_names(struct tier *t)
{
	(void)t;
	return 0;
}

static int dram_room(struct tier *tier, struct tier_room *out)
{
	struct tier_file *t = tier_file_of(tier);
	struct tier_room room = { .total = t->limit };
	int rc = tier_file_used(t, &room.used);

	if (rc)
		return rc;
	room.avail = t->limit > room.used ? t->limit - room.used : 0;
	*out = room;
	return 0;
}

static void dram_close(struct tier *tier)
{
	struct tier_file *t = tier_file_of(tier);

	tier_file_fini(t);
	free(t);
}

static const struct tier_ops dram_ops = {
	.name = "dram",
	.create = tier_file_create,
	.open = tier_file_open,
	.remove = tier_file_remove,
	.preallocate = tier_file_preallocate,
	.trim = dram_trim,
	.write = dram_write,
	.sync = dram_sync,
	.sync_names = dram_sync_names,
	.room = dram_room,
	.each = tier_file_each,
	.close = dram_close,
};

int tier_dram_open(const char *dir, uint64_t limit, struct tier **out)
{
	struct tier_file *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return -ENOMEM;
	rc = tier_file_init(t, &dram_ops, dir, limit);
	if (rc) {
		dram_close(&t->base);
		return rc;
	}
	snprintf(t->io, sizeof(t->io), "pwrite");
	*out = &t->base;
	return 0;
}
