/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory under a local tier. Files are reached by openat() from a
 * descriptor held open, so that a mount over the path or a rename of a parent
 * cannot lead elsewhere.
 *
 * How much is used is counted by looking at every file, because passthrough
 * writers allocate behind our back; the count is cached for a second (longer
 * where counting is slow).
 */
#include "engine/tier_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "metadata/fault.h"
#include "metadata/log_message.h"

#define COUNT_EVERY_NS INT64_C(1000000000)
#define COUNT_SHARE 20 /* counting takes at most this part of the time */

static void name_of(uint64_t id, char name[TIER_NAME_LEN])
{
	snprintf(name, TIER_NAME_LEN, "%016" PRIx64, id);
}

static bool id_of(const char *name, uint64_t *id)
{
	uint64_t v = 0;

	if (strlen(name) != TIER_NAME_LEN - 1)
		return false;
	for (; *name; name++) {
		const char *digits = "0123456789abcdef";
		const char *at = strchr(digits, *name);

		if (!at)
			return false;
		v = v << 4 | (uint64_t)(at - digits);
	}
	*id = v;
	return true;
}

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int tier_file_init(struct tier_file *t, const struct tier_ops *ops,
		   const char *dir, uint64_t limit)
{
	uint64_t used;

	t->base.ops = ops;
	t->base.io = t->io;
	t->limit = limit;
	mutex_init(&t->lock);
	atomic_flag_clear(&t->said_no_room_kept);
	t->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (t->dir_fd < 0)
		return -errno;
	t->base.dir = strdup(dir);
	if (!t->base.dir)
		return -ENOMEM;
	return tier_file_used(t, &used);
}

void tier_file_fini(struct tier_file *t)
{
	close_p(&t->dir_fd);
	free((char *)t->base.dir);
	mutex_fini(&t->lock);
}

int tier_file_create(struct tier *tier, uint64_t id, int flags, int *fd)
{
	struct tier_file *t = tier_file_of(tier);
	char name[TIER_NAME_LEN];
	int got = FAULT("tier.create", -EMFILE);

	if (got)
		return got;
	name_of(id, name);
	flags |= O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
	got = openat(t->dir_fd, name, flags, 0600);
	if (got < 0)
		return -errno;
	*fd = got;
	return 0;
}

int tier_file_open(struct tier *tier, uint64_t id, int flags, int *fd)
{
	struct tier_file *t = tier_file_of(tier);
	char name[TIER_NAME_LEN];
	int got = FAULT("tier.open", -EMFILE);

	if (got)
		return got;
	name_of(id, name);
	flags |= O_CLOEXEC | O_NOFOLLOW;
	got = openat(t->dir_fd, name, flags);
	if (got < 0 && errno == EINVAL && (flags & O_DIRECT))
		got = openat(t->dir_fd, name, flags & ~O_DIRECT);
	if (got < 0)
		return -errno;
	*fd = got;
	return 0;
}

static void used_change(struct tier_file *t, uint64_t more, uint64_t less)
{
	mutex_lock(&t->lock);
	t->used += more;
	t->used -= less < t->used ? less : t->used;
	mutex_unlock(&t->lock);
}

int tier_file_remove(struct tier *tier, uint64_t id)
{
	struct tier_file *t = tier_file_of(tier);
	char name[TIER_NAME_LEN];
	struct stat st = { 0 };
	int err = FAULT("tier.remove", -EIO);

	if (err)
		return err;
	name_of(id, name);
	(void)fstatat(t->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW);
	if (unlinkat(t->dir_fd, name, 0))
		return errno == ENOENT ? 0 : -errno;
	used_change(t, 0, (uint64_t)st.st_blocks * 512);
	return 0;
}

int tier_file_keep_times(int fd, const struct stat *st)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, st->st_mtim };

	return futimens(fd, times) ? -errno : 0;
}

/* fallocate(2) is not there: the best that can be had is a look. */
static int room_for(struct tier_file *t, uint64_t need)
{
	struct statvfs v;

	if (!atomic_flag_test_and_set(&t->said_no_room_kept))
		message_warning("the filesystem of '%s' cannot set room aside "
				"(fallocate): others may fill it before a "
				"flush",
				t->base.dir);
	if (fstatvfs(t->dir_fd, &v))
		return -errno;
	return (uint64_t)v.f_bavail * v.f_frsize < need ? -ENOSPC : 0;
}

static int allocate(int fd, uint64_t off, uint64_t len)
{
	int rc;

	do
		rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)len);
	while (rc && errno == EINTR);
	return rc ? -errno : 0;
}

static bool over_limit(struct tier_file *t, uint64_t more)
{
	uint64_t used;

	if (!t->limit || tier_file_used(t, &used))
		return false;
	return used + more > t->limit;
}

/*
 * An allocation waits for the write call that goes on in its file, and setting
 * a time for the next: where something was appended meanwhile, the time stays
 * that of the change, or becomes now.
 */
static int keep_times_unless_grown(int fd, const struct stat *before)
{
	static const struct timespec now[2] = { { .tv_nsec = UTIME_OMIT },
						{ .tv_nsec = UTIME_NOW } };
	struct stat st;
	int rc;

	if (fstat(fd, &st))
		return -errno;
	if (st.st_size != before->st_size)
		return 0;
	rc = tier_file_keep_times(fd, before);
	if (rc || fstat(fd, &st) || st.st_size == before->st_size)
		return rc;
	return futimens(fd, now) ? -errno : 0;
}

int tier_file_preallocate(struct tier *tier, int fd, uint64_t off, uint64_t len)
{
	struct tier_file *t = tier_file_of(tier);
	struct stat before, after;
	uint64_t have, need;
	int rc = FAULT("tier.preallocate", -ENOSPC);

	if (!len || rc)
		return rc;
	if (fstat(fd, &before))
		return -errno;
	have = (uint64_t)before.st_blocks * 512;
	need = off + len > have ? off + len - have : 0;
	if (over_limit(t, need))
		return -ENOSPC;
	rc = allocate(fd, off, len);
	if (rc == -EOPNOTSUPP)
		return room_for(t, need);
	/* Also after a failure: part may have been allocated. */
	if (!fstat(fd, &after) && after.st_blocks > before.st_blocks)
		used_change(t, (uint64_t)after.st_blocks * 512 - have, 0);
	if (rc) {
		(void)!keep_times_unless_grown(fd, &before);
		return rc;
	}
	return keep_times_unless_grown(fd, &before);
}

static int each_in(struct tier_file *t, DIR *d,
		   int (*fn)(void *arg, uint64_t id, uint64_t blocks),
		   void *arg)
{
	struct dirent *e;
	struct stat st;
	uint64_t id;
	int rc;

	for (errno = 0; (e = readdir(d)); errno = 0) {
		if (!id_of(e->d_name, &id))
			continue;
		if (fstatat(t->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISREG(st.st_mode))
			continue; /* removed meanwhile, or not ours */
		rc = fn(arg, id, (uint64_t)st.st_blocks);
		if (rc)
			return rc;
	}
	return -errno;
}

int tier_file_each(struct tier *tier,
		   int (*fn)(void *arg, uint64_t id, uint64_t blocks),
		   void *arg)
{
	struct tier_file *t = tier_file_of(tier);
	int rc, fd;
	DIR *d;

	fd = openat(t->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	d = fdopendir(fd);
	if (!d) {
		rc = -errno;
		close(fd);
		return rc;
	}
	rc = each_in(t, d, fn, arg);
	closedir(d);
	return rc;
}

static int add_blocks(void *arg, uint64_t id, uint64_t blocks)
{
	uint64_t *sum = arg;

	(void)id;
	*sum += blocks * 512;
	return 0;
}

/* true: the cached number will do, or another thread is counting. */
static bool used_cached(struct tier_file *t, int64_t now, uint64_t *out)
{
	bool fresh;

	mutex_lock(&t->lock);
	fresh = t->count_at && now < t->count_at;
	if (!fresh)
		t->count_at = now + COUNT_EVERY_NS;
	*out = t->used;
	mutex_unlock(&t->lock);
	return fresh;
}

int tier_file_used(struct tier_file *t, uint64_t *out)
{
	int64_t start = now_ns(), took;
	uint64_t sum = 0, cached;
	int rc;

	if (used_cached(t, start, &cached)) {
		*out = cached;
		return 0;
	}
	rc = tier_file_each(&t->base, add_blocks, &sum);
	if (rc)
		return rc;
	took = now_ns() - start;
	mutex_lock(&t->lock);
	t->used = sum;
	t->count_at = start + took +
		      (COUNT_EVERY_NS > COUNT_SHARE * took
			       ? COUNT_EVERY_NS
			       : COUNT_SHARE * took);
	mutex_unlock(&t->lock);
	*out = sum;
	return 0;
}
