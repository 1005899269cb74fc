/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the mount a path lies on, and asking its daemon.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "fs/ckptctl.h"

#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

const char *ctl_error_text(int err)
{
	switch (-err) {
	case EPERM:
		return "only whoever mounted it and root may";
	case ENODEV:
		return "this mount has no remote";
	case EPROTO:
		return "ckptctl and the running ckptfs are of different "
		       "versions: use the ckptctl installed with it";
	case ENOTCONN:
		return "its daemon is dead: mount it again";
	default:
		return strerror(-err);
	}
}

/* As \040 for a blank, in mountinfo. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++)
		if (s[0] == '\\' && s[1] && s[2] && s[3]) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 |
				       (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	*to = '\0';
}

static bool is_ckptfs_line(char *line, char **point, dev_t *dev)
{
	char *field[5], *save = NULL;
	unsigned major, minor;

	if (!strstr(line, " - fuse.ckptfs "))
		return false;
	for (int i = 0; i < 5; i++)
		if (!(field[i] = strtok_r(i ? NULL : line, " ", &save)))
			return false;
	if (sscanf(field[2], "%u:%u", &major, &minor) != 2)
		return false;
	*dev = makedev(major, minor);
	*point = field[4];
	unescape(*point);
	return true;
}

/* The ckptfs that the working directory lies on, else the only one there is;
 * malloc'ed. */
static int default_path(char **out)
{
	CLEANUP(free_p) char *line = NULL, *found = NULL;
	FILE *f = fopen("/proc/self/mountinfo", "re");
	bool in_one = false;
	struct stat here;
	size_t room = 0;
	unsigned n = 0;
	char *point;
	dev_t dev;

	if (stat(".", &here))
		here.st_dev = 0;
	while (f && getline(&line, &room, f) > 0)
		if (is_ckptfs_line(line, &point, &dev)) {
			in_one |= dev == here.st_dev;
			free(found);
			found = strdup(point);
			n++;
		}
	if (f)
		fclose(f);
	if (in_one) {
		free(found);
		found = realpath(".", NULL);
	} else if (n > 1) {
		return ctl_fail("%u ckptfs are mounted: give a PATH on one of "
				"them",
				n);
	}
	*out = MOVE(found);
	return *out ? 0 : ctl_fail("no ckptfs is mounted here");
}

bool ctl_on_fuse(const char *path)
{
	struct statfs st;

	return statfs(path, &st) == 0 && st.f_type == FUSE_SUPER_MAGIC;
}

static int choose_path(const char *path, char **out)
{
	if (!path)
		return default_path(out);
	*out = realpath(path, NULL);
	if (*out)
		return 0;
	(void)ctl_fail("'%s': %s", path, ctl_error_text(-errno));
	return CTL_ERROR;
}

/* Cuts root, a copy of the path, back to where st_dev changes. */
static int walk_up(char *root, dev_t dev)
{
	struct stat st;

	for (;;) {
		char *slash = strrchr(root, '/'), cut;

		if (slash == root && !root[1])
			return 0;
		if (slash == root)
			slash++;
		cut = *slash;
		*slash = '\0';
		if (stat(root, &st))
			return -errno;
		if (st.st_dev != dev) {
			*slash = cut;
			return 0;
		}
	}
}

/* The path, or where it lies: the path is resolved, so it names that. */
static int open_dir(const char *path, bool is_dir)
{
	CLEANUP(free_p) char *dir = strdup(path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!dir)
		return -1;
	if (!is_dir && slash)
		slash[slash == dir] = '\0';
	return open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int open_mount(struct ctl_mount *m)
{
	struct stat st, root;
	int err;

	if (stat(m->path, &st) && errno == ENOTCONN)
		return ctl_fail("'%s': its daemon is dead; mount it again",
				m->path);
	if (stat(m->path, &st))
		return ctl_fail("'%s': %s", m->path, ctl_error_text(-errno));
	if (!ctl_on_fuse(m->path))
		return ctl_fail("'%s' is not on a ckptfs mount", m->path);
	m->ino = st.st_ino;
	m->root = strdup(m->path);
	if (!m->root)
		return ctl_fail("out of memory");
	err = walk_up(m->root, st.st_dev);
	if (err || stat(m->root, &root))
		return ctl_fail("cannot find the mount of '%s': %s", m->path,
				strerror(err ? -err : errno));
	m->fd = open_dir(m->path, S_ISDIR(st.st_mode));
	if (m->fd < 0)
		return ctl_fail("cannot open '%s', or where it lies: %s",
				m->path, strerror(errno));
	m->is_root = root.st_ino == st.st_ino;
	return 0;
}

int ctl_mount_open(const char *path, struct ctl_mount *out)
{
	struct ctl_mount m = { .fd = -1 };
	int status = choose_path(path, &m.path);

	if (!status)
		status = open_mount(&m);
	if (status)
		ctl_mount_close(&m);
	else
		*out = m;
	return status;
}

void ctl_mount_close(struct ctl_mount *m)
{
	close_p(&m->fd);
	free(m->root);
	free(m->path);
}

int ctl_call(const struct ctl_mount *mnt, struct control_msg *m)
{
	const struct timespec soon = { .tv_nsec = 50000000 };
	int err;

	m->version = CONTROL_VERSION;
	for (int tries = 0; tries < 100; tries++) {
		struct control_msg ask = *m;

		if (ioctl(mnt->fd, CONTROL_IOCTL, &ask)) {
			err = -errno;
			if (err == -EINTR)
				continue;
			(void)ctl_fail("'%s': %s", mnt->root,
				       err == -ENOTTY ? "not a ckptfs mount"
						      : ctl_error_text(err));
			return err;
		}
		if (ask.err != -EAGAIN) {
			*m = ask;
			return 0;
		}
		nanosleep(&soon, NULL);
	}
	(void)ctl_fail("'%s': its daemon is too busy to answer", mnt->root);
	return -EAGAIN;
}

/* All pieces of a text, NUL-ended; a text that changed is begun again. */
static int read_text(const struct ctl_mount *mnt, uint32_t op, uint64_t ino,
		     char **out)
{
	CLEANUP(free_p) char *text = NULL;
	uint64_t done = 0, total = 0;

	do {
		struct control_msg m = { .op = op, .ino = ino, .offset = done };
		int err = ctl_call(mnt, &m);

		if (err)
			return CTL_ERROR;
		if (m.err == -ENOENT)
			return -ENOENT;
		if (m.err)
			return ctl_fail("'%s': %s", mnt->path,
					ctl_error_text(m.err));
		if (!done || m.total != total) {
			done = m.offset ? 0 : done;
			free(text);
			text = malloc(m.total + 1);
			total = m.total;
			if (!text)
				return ctl_fail("out of memory");
			if (m.offset)
				continue;
		}
		if (!m.len || m.len > sizeof(m.text) || m.len > total - done)
			return ctl_fail("the daemon's answer is malformed");
		memcpy(text + done, m.text, m.len);
		done += m.len;
	} while (done < total);
	text[total] = '\0';
	*out = MOVE(text);
	return 0;
}

int ctl_call_json(const struct ctl_mount *mnt, uint32_t op, uint64_t ino,
		  json_t **out)
{
	CLEANUP(free_p) char *text = NULL;
	json_error_t why;
	int status = read_text(mnt, op, ino, &text);

	if (status)
		return status;
	*out = json_loads(text, 0, &why);
	if (!*out)
		return ctl_fail("the daemon's answer is malformed: %s",
				why.text);
	return 0;
}
