/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a capture. Room is allocated in steps ahead of whoever writes (a
 * full disk is then -ENOSPC and never a SIGBUS through the mapping), small
 * enough that the first bytes are on their way to NVMe long before the last
 * step.
 */
#include "providers/target.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "providers/cleanup.h"
#include "providers/mount_ioctl.h"
#include "providers/target_temp.h"

#define ROOM_STEP (UINT64_C(64) << 20)
#define TELL_LEN (UINT64_C(4) << 20)     /* a chunk of the mount */
#define DIRECT_MIN (UINT64_C(256) << 10) /* less is faster in the page cache */
#define TAIL_MIN (UINT64_C(64) << 10)
#define TAIL_MAX (UINT64_C(4) << 20)

/* It is opened again by whoever waits, from wherever the process is then. */
static char *absolute_dir(const char *path, const char *slash)
{
	CLEANUP(free_p) char *cwd = NULL;
	char *dir;

	if (path[0] == '/')
		return slash == path ? strdup("/")
				     : strndup(path, (size_t)(slash - path));
	cwd = getcwd(NULL, 0);
	if (!cwd || asprintf(&dir, "%s/%.*s", cwd,
			     slash ? (int)(slash - path) : 0, path) < 0)
		return NULL;
	return dir;
}

int target_init(struct target *t, const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	*t = (struct target){ .dir_fd = -1, .fd = -1, .direct_fd = -1 };
	if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
		return -EINVAL;
	if (strlen(name) > NAME_MAX)
		return -ENAMETOOLONG;
	t->name = strdup(name);
	t->dir = absolute_dir(path, slash);
	pthread_mutex_init(&t->lock, NULL);
	return t->name && t->dir ? 0 : -ENOMEM;
}

void target_fini(struct target *t)
{
	close_p(&t->fd);
	close_p(&t->direct_fd);
	close_p(&t->dir_fd);
	if (t->name)
		pthread_mutex_destroy(&t->lock);
	free(t->dir);
	free(t->name);
	free(t->temp);
}

/* ---- opening ----------------------------------------------------------- */

/* A guess at what has no place yet: pickles, directories. */
static uint64_t tail_len(const struct target *t)
{
	uint64_t len = t->known_len / 8 + TAIL_MIN;

	return len < TAIL_MAX ? len : TAIL_MAX;
}

/* What the mount is, and how large a file it should make room for. */
static void tell_size(struct target *t)
{
	struct ckpt_expect expect = { .version = CKPT_IOC_VERSION,
				      .len = t->known_len + tail_len(t) };

	snprintf(expect.name, sizeof(expect.name), "%s", t->temp);
	if (ioctl(t->dir_fd, CKPT_IOC_EXPECT, &expect))
		return;
	t->on_ckptfs = true;
	t->passthrough = expect.flags & CKPT_MOUNT_PASSTHROUGH;
	t->has_remote = expect.flags & CKPT_MOUNT_REMOTE;
}

/* A name that is nobody's, and the file of it. */
static int create_temp(struct target *t)
{
	free(t->temp);
	t->temp = temp_name(t->name);
	if (!t->temp)
		return -ENOMEM;
	tell_size(t);
	t->fd = openat(t->dir_fd, t->temp,
		       O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return t->fd < 0 ? -errno : 0;
}

/* That very file, whatever its name stands for by now. */
static int open_directly(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
}

static int make_temp(struct target *t)
{
	struct stat st;
	int r;

	do
		r = create_temp(t);
	while (r == -EEXIST);
	if (r < 0) {
		free(t->temp); /* it is not ours to remove */
		t->temp = NULL;
		return r;
	}
	(void)flock(t->fd, LOCK_EX | LOCK_NB);
	if (fstat(t->fd, &st))
		return -errno;
	/* On ckptfs the page cache is the tier itself. */
	if (!t->on_ckptfs)
		t->direct_fd = open_directly(t->fd);
	t->ino = (uint64_t)st.st_ino;
	t->dev = st.st_dev;
	return 0;
}

/* Where the mapping is the tier itself: elsewhere it would be a page cache
 * whose size nobody bounds. */
static void map_known(struct target *t)
{
	void *map;

	if (!t->passthrough || !t->known_len)
		return;
	map = mmap(NULL, t->known_len, PROT_READ | PROT_WRITE, MAP_SHARED,
		   t->fd, 0);
	if (map == MAP_FAILED)
		return;
	/* A forked child would keep the file being written. */
	(void)madvise(map, t->known_len, MADV_DONTFORK);
	t->map = map;
}

int target_open(struct target *t, uint64_t known_len, bool map)
{
	int r;

	t->known_len = known_len;
	targets_lock();
	t->dir_fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = t->dir_fd < 0 ? -errno : 0;
	if (r == 0) {
		temp_sweep(t->dir_fd);
		r = make_temp(t);
	}
	targets_unlock();
	if (r == 0 && map)
		map_known(t);
	if (r < 0)
		target_abort(t);
	return r;
}

/* One for all: a file is locked before anybody else can take it for a dead
 * process's, and a fork sees all descriptors in their places. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

void targets_lock(void)
{
	pthread_mutex_lock(&making);
}

void targets_unlock(void)
{
	pthread_mutex_unlock(&making);
}

static void close_fd(int *fd)
{
	int old = *fd;

	*fd = -1; /* first: a fork must not find a number that is another's */
	close_p(&old);
}

void target_forget(struct target *t)
{
	close_fd(&t->fd);
	close_fd(&t->direct_fd);
	close_fd(&t->dir_fd);
}

/* ---- filling ----------------------------------------------------------- */

static int allocate(const struct target *t, uint64_t from, uint64_t to)
{
	int r;

	do
		r = fallocate(t->fd, 0, (off_t)from, (off_t)(to - from));
	while (r && errno == EINTR);
	if (!r)
		return 0;
	/* Writes will tell; a mapping must not find out by SIGBUS. */
	return errno == EOPNOTSUPP && !t->map ? 0 : -errno;
}

int target_room(struct target *t, uint64_t upto)
{
	int r = 0;

	pthread_mutex_lock(&t->lock);
	if (upto > t->room) {
		uint64_t to = upto < t->room + ROOM_STEP ? t->room + ROOM_STEP
							 : upto;

		if (to > t->known_len)
			to = upto > t->known_len ? upto : t->known_len;
		r = allocate(t, t->room, to);
		if (r == 0)
			t->room = to;
	}
	pthread_mutex_unlock(&t->lock);
	return r;
}

uint64_t target_allocated(struct target *t)
{
	uint64_t room;

	pthread_mutex_lock(&t->lock);
	room = t->room;
	pthread_mutex_unlock(&t->lock);
	return room;
}

static int write_all(int fd, const char *bytes, size_t len, uint64_t off)
{
	while (len) {
		ssize_t n = pwrite(fd, bytes, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		bytes += n;
		len -= (size_t)n;
		off += (uint64_t)n;
	}
	return 0;
}

int target_write(struct target *t, const void *buf, size_t len, uint64_t off)
{
	int r = target_room(t, off + len);

	/* The mount was told a guess of what has no fixed place: that much more
	 * a write may find, and says so itself. */
	if (r == -ENOSPC && off >= t->known_len)
		r = 0;
	return r ? r : write_all(t->fd, buf, len, off);
}

/* *done: whole pages that were written. Others' errors are its own; that a
 * filesystem will not, or not all of it, is none. */
static int write_direct(int fd, const char *bytes, size_t len, uint64_t off,
			size_t *done)
{
	const size_t page = pool_slack();

	*done = 0;
	while (*done < len) {
		ssize_t n = pwrite(fd, bytes + *done, len - *done,
				   (off_t)(off + *done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EINVAL && errno != EOPNOTSUPP)
			return -errno;
		if (n < (ssize_t)page)
			break;
		*done += (size_t)n / page * page;
	}
	return 0;
}

/* No page is written both ways: the parts of pages at its ends, and what a
 * filesystem refuses to write directly, go through the page cache. */
int target_write_staged(struct target *t, const void *bytes, size_t len,
			uint64_t off)
{
	const size_t page = pool_slack(), head = (page - off % page) % page;
	const char *at = bytes;
	size_t done = 0;
	int r;

	if (t->direct_fd < 0 || len < head + DIRECT_MIN)
		return target_write(t, bytes, len, off);
	r = target_write(t, at, head, off);
	if (r == 0)
		r = target_room(t, off + len);
	if (r == 0)
		r = write_direct(t->direct_fd, at + head,
				 (len - head) / page * page, off + head, &done);
	done += head;
	return r ? r : target_write(t, at + done, len - done, off + done);
}

static void tell_filled_locked(struct target *t)
{
	struct ckpt_filled filled = { .off = t->filled_at,
				      .len = t->filled_to - t->filled_at };

	if (filled.len)
		(void)ioctl(t->fd, CKPT_IOC_FILLED, &filled);
	t->filled_at = t->filled_to;
}

void target_filled(struct target *t, uint64_t off, uint64_t len)
{
	if (!t->on_ckptfs)
		return;
	pthread_mutex_lock(&t->lock);
	if (off != t->filled_to) {
		tell_filled_locked(t);
		t->filled_at = off;
	}
	t->filled_to = off + len;
	if (t->filled_to - t->filled_at >= TELL_LEN)
		tell_filled_locked(t);
	pthread_mutex_unlock(&t->lock);
}

/* ---- the end ----------------------------------------------------------- */

static void unmap(struct target *t)
{
	if (t->map)
		munmap(t->map, t->known_len);
	t->map = NULL;
}

static int ask_mount(struct target *t, int dir_fd, enum ckpt_level level)
{
	struct ckpt_reached ask = { .ino = t->ino, .level = level };

	pthread_mutex_lock(&t->lock);
	ask.seq = t->reached_seq;
	ask.lineage = t->lineage;
	ask.mount = t->mount_id;
	pthread_mutex_unlock(&t->lock);
	if (ioctl(dir_fd, CKPT_IOC_REACHED, &ask))
		return errno == ENOTTY ? -ESTALE : -errno;
	pthread_mutex_lock(&t->lock);
	t->reached_seq = ask.seq;
	t->lineage = ask.lineage;
	t->mount_id = ask.mount;
	pthread_mutex_unlock(&t->lock);
	if (ask.err == -EAGAIN)
		return 0;
	return ask.err ? ask.err : ask.reached != 0;
}

/* Whichever is closed first may be the only one to hear what went wrong. */
static int close_checked(int *fd)
{
	int old = *fd;

	*fd = -1;
	return old >= 0 && close(old) ? -errno : 0;
}

/*
 * Closed before it is renamed: so its seal comes before the name (a file
 * renamed while it is open has a weaker promise).
 */
int target_commit(struct target *t, uint64_t len)
{
	int r;

	unmap(t);
	if (ftruncate(t->fd, (off_t)len))
		return -errno;
	/* Between the two it is locked no more: nobody may take it for left. */
	targets_lock();
	r = close_checked(&t->direct_fd);
	if (r == 0)
		r = close_checked(&t->fd);
	if (r == 0 && renameat(t->dir_fd, t->temp, t->dir_fd, t->name))
		r = -errno;
	targets_unlock();
	if (r < 0)
		return r;
	/* Its number now, before anything can happen to it. */
	if (t->on_ckptfs)
		(void)!ask_mount(t, t->dir_fd, CKPT_DRAM);
	close_fd(&t->dir_fd);
	return 0;
}

void target_abort(struct target *t)
{
	unmap(t);
	if (t->temp && t->dir_fd >= 0)
		unlinkat(t->dir_fd, t->temp, 0);
	close_fd(&t->fd);
	close_fd(&t->direct_fd);
	close_fd(&t->dir_fd);
}

static int sync_here(const struct target *t, int dir_fd)
{
	CLEANUP(close_p)
	int fd = openat(dir_fd, t->name, O_RDONLY | O_CLOEXEC);

	/* Removed or moved meanwhile: then all there is must last. */
	if (fd < 0)
		return errno != ENOENT || syncfs(dir_fd) ? -errno : 1;
	return fsync(fd) || fsync(dir_fd) ? -errno : 1;
}

/*
 * The directory, or, if it was removed or renamed since, the nearest one above
 * it that is on the same filesystem: the mount knows the file by its number (and
 * itself by its own; its device number is another one after a remount).
 * It is not held open meanwhile: that would keep the mount busy.
 */
static int open_near(const struct target *t)
{
	CLEANUP(free_p) char *path = strdup(t->dir);
	struct stat st;
	int fd = -1;

	if (!path)
		return -ENOMEM;
	while (*path) {
		char *slash = strrchr(path, '/');

		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd >= 0 || errno != ENOENT || !slash)
			break;
		*slash = 0;
	}
	if (fd < 0)
		return *path ? -errno : -ENOENT;
	if (t->on_ckptfs || (!fstat(fd, &st) && st.st_dev == t->dev))
		return fd;
	close(fd);
	return -ESTALE;
}

int target_reached(struct target *t, enum ckpt_level level)
{
	CLEANUP(close_p) int dir_fd = -1;
	int r;

	if (level == CKPT_REMOTE && !t->has_remote)
		return -EOPNOTSUPP;
	r = open_near(t);
	if (r < 0)
		return r;
	dir_fd = r;
	return t->on_ckptfs ? ask_mount(t, dir_fd, level)
			    : sync_here(t, dir_fd);
}
