/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reserve: a preallocated file beside a database. When the filesystem is
 * full, RocksDB can neither flush nor be reopened; giving up
 * the reserve gives it the room to do both, and to record the deletions that
 * make room. It is made again as soon as there is room for it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "metadata/log_message.h"
#include "metadata/store.h"

/* Room left beside a reserve that is made again, so that it does not
 * flicker. */
#define SLACK (UINT64_C(1) << 20)

uint64_t reserve_free_room(const struct store *s)
{
	struct statvfs st;

	if (statvfs(s->dir, &st))
		return UINT64_MAX;
	return (uint64_t)st.f_bavail * st.f_frsize;
}

bool reserve_is_held(const struct store *s)
{
	return !s->reserve_len || s->reserve_held;
}

static int make_locked(struct store *s) MUST_HOLD(s->reserve_lock);
static int make_locked(struct store *s)
{
	CLEANUP(free_p) char *path = NULL;
	CLEANUP(close_p) int fd = -1;
	struct stat st;

	if (asprintf(&path, "%s/reserve", s->dir) < 0)
		return -ENOMEM;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if ((uint64_t)st.st_blocks * 512 >= s->reserve_len)
		return 0;
	if (reserve_free_room(s) < s->reserve_len + SLACK)
		return -ENOSPC;
	if (!fallocate(fd, 0, 0, (off_t)s->reserve_len))
		return 0;
	if (errno != EOPNOTSUPP)
		return -errno;
	message_warning("%s: the filesystem cannot preallocate: no reserve",
			s->dir);
	return 0;
}

void reserve_make(struct store *s)
{
	int err;

	if (!s->reserve_len || s->reserve_held)
		return;
	mutex_lock(&s->reserve_lock);
	if (!s->reserve_held && s->n_writing)
		err = -ENOSPC;
	else
		err = s->reserve_held ? 0 : make_locked(s);
	s->reserve_held = !err;
	mutex_unlock(&s->reserve_lock);
	if (err && err != -ENOSPC)
		message_warning("%s: no reserve: %s", s->dir, strerror(-err));
}

void reserve_release(struct store *s)
{
	CLEANUP(free_p) char *path = NULL;

	if (!s->reserve_len || asprintf(&path, "%s/reserve", s->dir) < 0)
		return;
	mutex_lock(&s->reserve_lock);
	/* Not unlink(2): XFS gives such blocks back some time later. */
	if (!truncate(path, 0))
		message_warning("%s: nearly full: reserve released", s->dir);
	s->reserve_held = false;
	mutex_unlock(&s->reserve_lock);
}

void reserve_write_begins(struct store *s)
{
	mutex_lock(&s->reserve_lock);
	s->n_writing++;
	mutex_unlock(&s->reserve_lock);
}

void reserve_write_ended(struct store *s)
{
	mutex_lock(&s->reserve_lock);
	s->n_writing--;
	mutex_unlock(&s->reserve_lock);
}
