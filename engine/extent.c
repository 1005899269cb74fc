/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SEEK_DATA and SEEK_HOLE, one pair a stretch. They leave the descriptor's
 * offset anywhere; all else in the engine names its offsets.
 */
#include "engine/extent.h"

#include <errno.h>
#include <fcntl.h>

static void look_again(struct extent *e, int fd, uint64_t off)
{
	off_t data, end;

	data = lseek(fd, (off_t)off, SEEK_DATA);
	if (data < 0 && errno == ENXIO) {
		e->data = e->end = UINT64_MAX; /* nothing more */
		return;
	}
	if (data < 0) {
		e->all = true;
		return;
	}
	end = lseek(fd, data, SEEK_HOLE);
	e->data = (uint64_t)data;
	/* Gone between the two calls: whoever reads will see what is there. */
	e->end = end > data ? (uint64_t)end : (uint64_t)data + 1;
}

enum extent_kind extent_look(struct extent *e, int fd, uint64_t off,
			     uint64_t len)
{
	if (e->all)
		return EXTENT_DATA;
	if (e->end <= off)
		look_again(e, fd, off);
	if (e->all)
		return EXTENT_DATA;
	if (e->data >= off + len)
		return EXTENT_HOLE;
	if (e->data <= off && e->end >= off + len)
		return EXTENT_DATA;
	return EXTENT_MIXED;
}

int extent_punch(int fd, uint64_t off, uint64_t len)
{
	int rc;

	do
		rc = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			       (off_t)off, (off_t)len);
	while (rc && errno == EINTR);
	return rc ? -errno : 0;
}
