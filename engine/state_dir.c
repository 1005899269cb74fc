/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory that nvme= names, and its lock: one ckptfs at a time, which
 * says there whether it is mounted or drains.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>

#include "engine/core.h"
#include "engine/start.h"
#include "metadata/log_message.h"

#define DRAIN_WAIT_S 600
#define LINE_MAX_LEN (PATH_MAX + 64) /* of the lock file */

int state_dir_make(const char *path)
{
	char buf[256];
	char *p;

	if (snprintf(buf, sizeof(buf), "%s", path) >= (int)sizeof(buf))
		return -ENAMETOOLONG;
	for (p = strchr(buf + 1, '/'); p; p = strchr(p + 1, '/')) {
		*p = 0;
		if (mkdir(buf, 0755) && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	return mkdir(buf, 0700) && errno != EEXIST ? -errno : 0;
}

void state_dir_say(struct engine *e, const char *state)
{
	char line[LINE_MAX_LEN];
	int n = snprintf(line, sizeof(line), "%s %d %.*s\n", state,
			 (int)getpid(), PATH_MAX, e->config.mountpoint);

	if (e->lock_fd < 0)
		return;
	if (ftruncate(e->lock_fd, 0) ||
	    pwrite(e->lock_fd, line, (size_t)n, 0) != n)
		message_warning("cannot write the lock file of %s: %m",
				e->nvme_dir);
}

/* line: "STATE PID MOUNTPOINT". One that was unmounted just now may not have
 * come to say that it drains. */
static bool is_mounted(const char *line)
{
	const char *at = strchr(line, '/');
	char entry[4096];
	FILE *f = fopen("/proc/self/mountinfo", "re");
	bool found = false;
	size_t len = at ? strlen(at) : 0;

	while (f && len && !found && fgets(entry, sizeof(entry), f)) {
		const char *p = strstr(entry, at);

		found = p && p > entry && p[-1] == ' ' && p[len] == ' ';
	}
	if (f)
		fclose(f);
	return found;
}

/* Another ckptfs holds it: wait while that one drains, else say so. */
static int wait_for_lock(struct start *s)
{
	struct engine *e = s->e;
	int64_t until = now_mono_ns() + DRAIN_WAIT_S * INT64_C(1000000000);
	int64_t soon = now_mono_ns() + INT64_C(3000000000);
	char line[LINE_MAX_LEN];
	bool told = false;
	int r;

	while (flock(e->lock_fd, LOCK_EX | LOCK_NB)) {
		ssize_t n = pread(e->lock_fd, line, sizeof(line) - 1, 0);
		struct timespec ts = { .tv_nsec = 20000000 };

		line[n > 0 ? n : 0] = 0;
		line[strcspn(line, "\n")] = 0;
		if (n > 0 && strncmp(line, "draining", 8) != 0 &&
		    (is_mounted(line) || now_mono_ns() > soon))
			return start_fail(s, -EBUSY,
					  "nvme=%s is in use by another ckptfs "
					  "(%s): unmount that one, or choose "
					  "another directory",
					  e->nvme_dir, line);
		if (now_mono_ns() > until)
			return start_fail(
				s, -ETIMEDOUT,
				"nvme=%s: the last mount still flushes "
				"(%s): try again later",
				e->nvme_dir, line);
		if (!told)
			message_info("waiting until the last mount of %s has "
				     "flushed",
				     e->nvme_dir);
		told = true;
		r = start_goes_on(s);
		if (r < 0)
			return r;
		nanosleep(&ts, NULL);
	}
	return 0;
}

int state_dir_open(struct start *s)
{
	struct engine *e = s->e;
	struct statfs fs;
	char path[300];
	int r;

	r = state_dir_make(e->nvme_dir);
	if (r < 0)
		return start_fail(
			s, r,
			"cannot make nvme=%s: %s: choose a directory on "
			"a local disk",
			e->nvme_dir, strerror(-r));
	snprintf(path, sizeof(path), "%s/lock", e->nvme_dir);
	e->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (e->lock_fd < 0) {
		r = -errno;
		return start_fail(
			s, r,
			"cannot write in nvme=%s: %s: choose a directory "
			"that you may write",
			e->nvme_dir, strerror(-r));
	}
	r = wait_for_lock(s);
	if (r < 0)
		return r;
	state_dir_say(e, "mounted");
	if (!statfs(e->nvme_dir, &fs) && fs.f_type == TMPFS_MAGIC)
		message_warning("nvme=%s is on tmpfs: `nvme` will not survive "
				"a power loss",
				e->nvme_dir);
	return 0;
}

int state_dir_id(struct start *s, char id[33])
{
	struct engine *e = s->e;
	CLEANUP(close_p) int fd = -1;
	unsigned char raw[16];
	char path[300];

	snprintf(path, sizeof(path), "%s/id", e->nvme_dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return start_fail(s, -errno, "cannot open %s: %m", path);
	if (pread(fd, id, 32, 0) == 32) {
		id[32] = 0;
		if (strspn(id, "0123456789abcdef") == 32)
			return 0;
	}
	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		return start_fail(s, -EIO, "no random numbers: %m");
	for (int i = 0; i < 16; i++)
		snprintf(id + 2 * i, 3, "%02x", raw[i]);
	if (pwrite(fd, id, 32, 0) != 32 || fsync(fd))
		return start_fail(s, errno ? -errno : -EIO,
				  "cannot write %s: %m: is the disk full?",
				  path);
	return 0;
}
