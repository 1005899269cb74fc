/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways into a directory remote: a path is checked and its parent opened, part
 * by part beneath the root, no symlink followed.
 *
 * A user may close what is his: a file of mode 0200, a folder of mode 0555.
 * The remote has the same modes, but the daemon must still read and change
 * what is there, for events of another moment are replayed. Root may do so
 * anyway; for others the missing bits are lent for the moment of one call.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#include "engine/remote_dir.h"

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* ---- rights ----------------------------------------------------------- */

static void name_in_proc(int fd, char proc[32])
{
	snprintf(proc, 32, "/proc/self/fd/%d", fd);
}

/* need as an owner's bits; the kernel is asked last, for it knows of root. */
static bool lacks(int fd, const struct stat *st, mode_t need)
{
	char proc[32];

	if ((st->st_mode & need) == need || st->st_uid != geteuid() ||
	    S_ISLNK(st->st_mode))
		return false;
	name_in_proc(fd, proc);
	return faccessat(AT_FDCWD, proc, (int)(need >> 6), AT_EACCESS) != 0;
}

int lend(int fd, mode_t need, struct lent *out)
{
	struct stat st;
	char proc[32];

	*out = (struct lent){ .fd = fd };
	if (fstat(fd, &st))
		return -errno;
	if (!lacks(fd, &st, need))
		return 0;
	out->was = st.st_mode & 07777;
	name_in_proc(fd, proc);
	if (!chmod(proc, out->was | need))
		out->is = out->was | need;
	return out->is || is_refusal(-errno) ? 0 : -errno;
}

/* Unless somebody has set another mode meanwhile. */
void lent_back(struct lent *l)
{
	struct stat st;
	char proc[32];

	name_in_proc(l->fd, proc);
	if (l->is && !fstat(l->fd, &st) && (st.st_mode & 07777) == l->is)
		(void)!chmod(proc, l->was);
	l->is = 0;
}

int node_reopen(const struct node *n, int flags)
{
	struct lent lent;
	int fd, err = lend(n->fd, S_IRUSR, &lent);

	if (err)
		return err;
	fd = open(n->proc, flags & ~O_NOFOLLOW);
	err = -errno;
	lent_back(&lent);
	return fd < 0 ? err : fd;
}

int open_anyway(int at, const char *name, int flags)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	int fd = openat(at, name, flags), err;

	if (fd >= 0)
		return fd;
	if (errno != EACCES)
		return -errno;
	err = node_open(at, name, &n);
	return err ? err : node_reopen(&n, flags);
}

/* ---- paths ------------------------------------------------------------ */

static bool is_bad_part(const char *s, size_t len)
{
	return !len || len > META_NAME_MAX || (len == 1 && s[0] == '.') ||
	       (len == 2 && s[0] == '.' && s[1] == '.');
}

/* The root ("") is fine; what is ours is not. */
static bool path_is_good(const char *path)
{
	const size_t own = strlen(REMOTE_PREFIX);
	const char *p = path;

	if (!*path)
		return true;
	if (strlen(path) >= META_PATH_MAX ||
	    (!strncmp(path, REMOTE_PREFIX, own) &&
	     (path[own] == '/' || !path[own])))
		return false;
	for (;;) {
		size_t len = strcspn(p, "/");

		if (is_bad_part(p, len))
			return false;
		if (!p[len])
			return true;
		p += len + 1;
	}
}

/* One part of the way. Without x on `at`, too, if it is ours. */
static int walk_into(int at, const char *part)
{
	struct lent lent;
	int fd, err = lend(at, S_IXUSR, &lent);

	if (err)
		return err;
	fd = open_anyway(at, part, DIR_FLAGS);
	lent_back(&lent);
	return fd;
}

/* Part by part, for kernels and sandboxes without openat2, and where a part
 * of the way is closed. */
static int walk_beneath(int root, char *path)
{
	int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
	char *save = NULL;
	const char *part;

	if (at < 0)
		return -errno;
	for (part = strtok_r(path, "/", &save); part && at >= 0;
	     part = strtok_r(NULL, "/", &save)) {
		int next = walk_into(at, part);

		close(at);
		at = next == -ELOOP ? -ENOTDIR : next;
	}
	return at;
}

static int open_beneath(int root, char *path)
{
	struct open_how how = {
		.flags = (uint64_t)DIR_FLAGS,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
	};
	long fd = syscall(SYS_openat2, root, path, &how, sizeof(how));

	if (fd >= 0)
		return (int)fd;
	if (errno == ENOSYS || errno == EPERM || errno == EACCES)
		return walk_beneath(root, path);
	return errno == ELOOP || errno == EXDEV ? -ENOTDIR : -errno;
}

static int open_lent(struct dir_root *root, const char *path, mode_t need,
		     struct place *out)
{
	const char *slash = strrchr(path, '/');
	char parent[META_PATH_MAX] = ".";
	int fd, err;

	if (!path_is_good(path))
		return -EINVAL;
	if (slash)
		snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path),
			 path);
	fd = open_beneath(root->fd, parent);
	if (fd < 0)
		return fd;
	err = lend(fd, need, &out->lent);
	if (err) {
		close(fd);
		return err;
	}
	out->parent = fd;
	out->name = slash ? slash + 1 : *path ? path : ".";
	return 0;
}

int place_open(struct dir_root *root, const char *path, struct place *out)
{
	return open_lent(root, path, S_IXUSR, out);
}

int place_change(struct dir_root *root, const char *path, struct place *out)
{
	return open_lent(root, path, S_IWUSR | S_IXUSR, out);
}

void place_close(struct place *p)
{
	lent_back(&p->lent);
	if (p->parent >= 0)
		close(p->parent);
	p->parent = -1;
}
