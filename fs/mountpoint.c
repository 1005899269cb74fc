/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mount points. The checks here exist for their messages: mount(2) and
 * fusermount3 would refuse as well, but in words that name no remedy.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "fs/mountpoint.h"
#include "metadata/log_message.h"

extern char **environ;

/* ---- unmounting ------------------------------------------------------- */

static int fusermount(const char *path, bool lazy)
{
	const char *const argv[] = { "fusermount3", lazy ? "-uzq" : "-uq", "--",
				     path, NULL };
	pid_t pid;
	int status;

	if (posix_spawnp(&pid, argv[0], NULL, NULL, (char *const *)argv,
			 environ))
		return -EPERM;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EBUSY;
}

static int unmount(const char *path, bool lazy)
{
	int err;

	if (umount2(path, lazy ? MNT_DETACH : 0) == 0)
		return 0;
	err = -errno;
	return err == -EPERM ? fusermount(path, lazy) : err;
}

/* ---- what is mounted -------------------------------------------------- */

/* mountinfo writes blanks and backslashes as \040 and the like. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] &&
		    s[3]) {
			*to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 +
				       (s[3] - '0'));
			s += 3;
		} else {
			*to++ = *s;
		}
	}
	*to = '\0';
}

/* "36 35 98:0 /root /mnt/point rw,noatime shared:1 - fuse.ckptfs src rw" */
static bool parse_mountinfo(char *line, const char *path, struct mounted *out)
{
	char *field[6], *save = NULL, *type;

	type = strstr(line, " - ");
	if (!type)
		return false;
	for (int i = 0; i < 6; i++) {
		field[i] = strtok_r(i ? NULL : line, " ", &save);
		if (!field[i])
			return false;
	}
	unescape(field[4]);
	if (strcmp(field[4], path) != 0 ||
	    sscanf(field[2], "%u:%u", &out->major, &out->minor) != 2)
		return false;
	out->ckptfs = strncmp(type + 3, "fuse.ckptfs ", 12) == 0;
	return true;
}

int mountpoint_find(const char *path, struct mounted *out)
{
	CLEANUP(free_p) char *line = NULL;
	FILE *f = fopen("/proc/self/mountinfo", "re");
	struct mounted m = { 0 };
	size_t room = 0;
	int err = -ENOENT;

	if (!f)
		return -errno;
	/* Later ones lie on top of earlier ones. */
	while (getline(&line, &room, f) > 0)
		if (parse_mountinfo(line, path, &m)) {
			*out = m;
			err = 0;
		}
	fclose(f);
	return err;
}

int mountpoint_unmount(const char *path, const struct mounted *own, bool lazy)
{
	struct mounted m;
	int err = mountpoint_find(path, &m);

	if (err)
		return err;
	if (!m.ckptfs || m.major != own->major || m.minor != own->minor)
		return -ENOENT;
	return unmount(path, lazy);
}

/* ---- may it be mounted ------------------------------------------------ */

static int refuse(char *why, size_t why_len, int err, const char *fmt, ...)
	PRINTF(4, 5);
static int refuse(char *why, size_t why_len, int err, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, why_len, fmt, args);
	va_end(args);
	return err;
}

/* More than one dead daemon may have left its mount there. */
static int remove_dead(const char *path, char *why, size_t why_len)
{
	struct statvfs st;
	int err;

	for (int i = 0; i < 16; i++) {
		/* Not stat(): what the kernel remembers outlives us. */
		if (statvfs(path, &st) == 0 || errno != ENOTCONN)
			return 0;
		err = unmount(path, true);
		if (err)
			break;
		message_warning("took away the dead mount on '%s'", path);
	}
	return refuse(why, why_len, -ENOTCONN,
		      "a dead mount is in the way on '%s' and cannot be taken "
		      "away: run 'umount -l %s' as root",
		      path, path);
}

static int check_dir(const char *path, char *why, size_t why_len)
{
	struct mounted m = { 0 };
	struct stat st;

	if (stat(path, &st)) {
		int err = -errno;

		if (err == -ENOENT)
			return refuse(why, why_len, err,
				      "mount point '%s' does not exist: make "
				      "it with 'mkdir -p %s'",
				      path, path);
		return refuse(why, why_len, err,
			      "mount point '%s' cannot be reached: %s", path,
			      strerror(-err));
	}
	if (!S_ISDIR(st.st_mode))
		return refuse(why, why_len, -ENOTDIR,
			      "mount point '%s' is not a directory: give one",
			      path);
	if (!mountpoint_find(path, &m) && m.ckptfs)
		return refuse(why, why_len, -EBUSY,
			      "'%s' is a mounted ckptfs already: umount it "
			      "first",
			      path);
	return 0;
}

static int check_device(char *why, size_t why_len)
{
	CLEANUP(close_p) int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	int err = -errno;

	if (fd >= 0)
		return 0;
	if (err == -EACCES)
		return refuse(why, why_len, err,
			      "/dev/fuse may not be opened: run as root, or "
			      "have root run 'chmod 666 /dev/fuse'");
	if (err == -EPERM)
		return refuse(why, why_len, err,
			      "/dev/fuse may not be opened: start the "
			      "container with --device /dev/fuse");
	return refuse(why, why_len, err,
		      "/dev/fuse is not there (%s): run 'modprobe fuse', or "
		      "start the container with --device /dev/fuse",
		      strerror(-err));
}

static bool allow_other_is_allowed(void)
{
	FILE *f = fopen("/etc/fuse.conf", "re");
	bool allowed = false;
	char line[256];

	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		const char *p = line + strspn(line, " \t");

		if (strncmp(p, "user_allow_other", 16) == 0 &&
		    strchr(" \t\n", p[16]))
			allowed = true;
	}
	fclose(f);
	return allowed;
}

/* Root of a container need not have it. Not knowing is not a no. */
static bool may_mount(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	unsigned long long caps = ~0ull;
	char line[128];

	if (!f)
		return true;
	while (fgets(line, sizeof(line), f))
		if (strncmp(line, "CapEff:", 7) == 0)
			caps = strtoull(line + 7, NULL, 16);
	fclose(f);
	return caps >> CAP_SYS_ADMIN & 1;
}

static int check_root(char *why, size_t why_len)
{
	if (may_mount())
		return 0;
	return refuse(why, why_len, -EPERM,
		      "no right to mount: root has no CAP_SYS_ADMIN here; "
		      "start the container with --cap-add SYS_ADMIN");
}

/* What fusermount3 will ask of an ordinary user. */
static int check_user(const struct options *o, char *why, size_t why_len)
{
	if (geteuid() == 0)
		return check_root(why, why_len);
	if (access(o->mountpoint, W_OK))
		return refuse(why, why_len, -EACCES,
			      "no right to mount on '%s': it must be writable "
			      "by you, or run as root",
			      o->mountpoint);
	if (o->allow_other && !allow_other_is_allowed())
		return refuse(why, why_len, -EPERM,
			      "allow_other is for root: leave it out, or have "
			      "'user_allow_other' put into /etc/fuse.conf");
	if (o->io == IO_PASSTHROUGH)
		return refuse(why, why_len, -EPERM,
			      "io=passthrough needs root: run as root, or "
			      "give io=auto");
	return 0;
}

/* Without links, as far as there is something. */
static void canonical(const char *path, char out[PATH_MAX])
{
	char head[PATH_MAX], real[PATH_MAX];
	size_t len = strlen(path);

	snprintf(out, PATH_MAX, "%s", path);
	for (; len; len--) {
		if (path[len] && path[len] != '/')
			continue;
		snprintf(head, sizeof(head), "%.*s", (int)len, path);
		if (!realpath(head, real))
			continue;
		if (snprintf(out, PATH_MAX, "%s%s", real, path + len) >=
		    PATH_MAX)
			out[0] = '\0';
		return;
	}
}

static bool is_below(const char *path, const char *dir)
{
	char p[PATH_MAX], d[PATH_MAX];
	size_t len;

	canonical(path, p);
	canonical(dir, d);
	len = strlen(d);
	return !strncmp(p, d, len) && (!p[len] || p[len] == '/' || len == 1);
}

static int check_outside(const struct options *o, const char *name,
			 const char *value, const char *path, char *why,
			 size_t why_len)
{
	if (!is_below(path, o->mountpoint))
		return 0;
	return refuse(why, why_len, -EINVAL,
		      "%s=%s lies in the mount point '%s': choose a place "
		      "elsewhere",
		      name, value, o->mountpoint);
}

static int check_remote(const struct options *o, const char *path, char *why,
			size_t why_len)
{
	int err = check_outside(o, "remote", o->remote, path, why, why_len);

	if (err || !(is_below(path, o->nvme) || is_below(o->nvme, path)))
		return err;
	return refuse(why, why_len, -EINVAL,
		      "remote=%s and nvme=%s lie in each other: choose "
		      "directories apart",
		      o->remote, o->nvme);
}

/* A place that lies in another one of ours would wait for itself, or be
 * published. */
static int check_places(const struct options *o, char *why, size_t why_len)
{
	const char *remote = o->remote ? o->remote : "";
	int err = check_outside(o, "nvme", o->nvme, o->nvme, why, why_len);

	if (!err && o->log)
		err = check_outside(o, "log", o->log, o->log, why, why_len);
	if (!strncmp(remote, "dir:", 4))
		remote += 4;
	if (!err && remote[0] == '/')
		err = check_remote(o, remote, why, why_len);
	return err;
}

int mountpoint_prepare(const struct options *o, char *why, size_t why_len)
{
	int err = check_device(why, why_len);

	if (!err)
		err = remove_dead(o->mountpoint, why, why_len);
	if (!err)
		err = check_dir(o->mountpoint, why, why_len);
	if (!err)
		err = check_user(o, why, why_len);
	if (!err)
		err = check_places(o, why, why_len);
	return err;
}
