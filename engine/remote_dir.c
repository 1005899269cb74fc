/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote kind `dir:`: an object is a file of its own name in a directory
 * of any POSIX filesystem (NFS, Lustre, a disk). Here: the operations on
 * names, reading, and the vtable. The other parts: remote_dir.h.
 */
#include "engine/remote_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "engine/fd_io.h"
#include "engine/thread.h"
#include "metadata/fault.h"

/* ---- jobs ------------------------------------------------------------- */

/* What an operation on one name needs. */
struct job {
	struct remote_dir *d;
	struct dir_root *root;
	struct place at;
};

static void job_end(struct job *j)
{
	place_close(&j->at);
	root_put(j->root);
}

/* To look at what is there. */
static int job_begin(struct remote *r, const char *path, struct job *j)
{
	int err;

	*j = (struct job){ .d = remote_dir(r), .at = { .parent = -1 } };
	err = root_get(j->d, &j->root);
	return err ? err : place_open(j->root, path, &j->at);
}

/* To make it another one. */
static int job_change(struct remote *r, const char *path, struct job *j)
{
	int err;

	*j = (struct job){ .d = remote_dir(r), .at = { .parent = -1 } };
	err = root_get(j->d, &j->root);
	return err ? err : place_change(j->root, path, &j->at);
}

/* ---- names ------------------------------------------------------------ */

static int set_attr_of(struct job *j, const char *path,
		       const struct remote_attr *attr)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	int err = node_open(j->at.parent, j->at.name, &n);

	if (!err)
		err = plain_set_attr(j->d, j->root, &n, path, attr);
	return err ? err : dirty_add(j->d, j->at.parent);
}

static int dir_mkdir(struct remote *r, const char *path,
		     const struct remote_attr *attr)
{
	CLEANUP(job_end) struct job j;
	struct stat st;
	int err = job_change(r, path, &j);

	if (err)
		return err;
	if (*path && mkdirat(j.at.parent, j.at.name, 0700)) {
		if (errno != EEXIST)
			return -errno;
		if (fstatat(j.at.parent, j.at.name, &st, AT_SYMLINK_NOFOLLOW))
			return -errno;
		if (!S_ISDIR(st.st_mode))
			return -EEXIST;
	}
	return set_attr_of(&j, path, attr);
}

static bool has_target(const struct place *at, const char *target)
{
	char now[META_PATH_MAX];
	ssize_t len = readlinkat(at->parent, at->name, now, sizeof(now));

	return len >= 0 && (size_t)len == strlen(target) &&
	       !memcmp(now, target, (size_t)len);
}

static int dir_symlink(struct remote *r, const char *path,
		       const struct remote_attr *attr)
{
	CLEANUP(job_end) struct job j;
	struct before before;
	char temp[64];
	int err = job_change(r, path, &j);

	if (err)
		return err;
	if (has_target(&j.at, attr->target))
		return set_attr_of(&j, path, attr);
	err = before_look(j.d, j.root, &j.at, path, &before);
	if (!err && S_ISDIR(before.st.st_mode))
		err = -EISDIR;
	if (err)
		return err;
	temp_name(j.d, temp);
	if (symlinkat(attr->target, j.root->staged, temp))
		return -errno;
	if (renameat(j.root->staged, temp, j.at.parent, j.at.name)) {
		err = -errno;
		(void)unlinkat(j.root->staged, temp, 0);
		return err;
	}
	before_forget(j.root, &before, "");
	return set_attr_of(&j, path, attr);
}

static int dir_remove(struct remote *r, const char *path)
{
	CLEANUP(job_end) struct job j;
	struct before before;
	int flags, err = *path ? job_change(r, path, &j) : -EINVAL;

	if (!*path)
		j = (struct job){ .at = { .parent = -1 } };
	if (!err)
		err = before_look(j.d, j.root, &j.at, path, &before);
	if (err == -ENOENT || err == -ENOTDIR)
		return 0;
	if (err)
		return err;
	flags = S_ISDIR(before.st.st_mode) ? AT_REMOVEDIR : 0;
	if (before.st.st_nlink && unlinkat(j.at.parent, j.at.name, flags) &&
	    errno != ENOENT)
		return errno == EEXIST ? -ENOTEMPTY : -errno;
	(void)!FAULT("remote.removed", 0);
	before_forget(j.root, &before, "");
	err = name_remove(j.root, path);
	return err ? err : dirty_add(j.d, j.at.parent);
}

/* ---- rename ----------------------------------------------------------- */

static bool same_inode(const struct before *a, const struct before *b)
{
	return a->st.st_nlink && b->st.st_nlink && !S_ISDIR(a->st.st_mode) &&
	       a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino;
}

static int move(struct job *from, const struct place *to,
		const struct before *was, const struct before *gone)
{
	int err = FAULT("remote.rename", -EIO);

	if (err)
		return err;
	if (renameat(from->at.parent, from->at.name, to->parent, to->name))
		return errno == EEXIST ? -ENOTEMPTY : -errno;
	/* Two names of one inode: rename() leaves both. */
	if (same_inode(was, gone) &&
	    unlinkat(from->at.parent, from->at.name, 0) && errno != ENOENT)
		return -errno;
	return 0;
}

static int dir_rename(struct remote *r, const char *from, const char *to)
{
	CLEANUP(job_end) struct job j;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(names_fini) struct names names = { 0 };
	struct before was, gone;
	int err = job_change(r, from, &j);

	if (err == -ENOTDIR)
		return -ENOENT;
	if (!err)
		err = before_look(j.d, j.root, &j.at, from, &was);
	if (!err && !was.st.st_nlink)
		err = -ENOENT;
	if (err)
		return err;
	err = place_change(j.root, to, &p);
	if (err == -ENOENT)
		return -ENOTDIR; /* not: from is not there */
	if (!err)
		err = before_look(j.d, j.root, &p, to, &gone);
	if (!err)
		err = names_collect(j.d, j.root, from, &names);
	if (!err)
		err = names_write(j.root, &names, from, to);
	if (!err)
		err = move(&j, &p, &was, &gone);
	if (err)
		return err;
	(void)!FAULT("remote.renamed", 0);
	before_forget(j.root, &gone, was.tag);
	err = names_remove(j.root, &names);
	if (!err)
		err = dirty_add(j.d, j.at.parent);
	return err ? err : dirty_add(j.d, p.parent);
}

/* In one call or not at all: by three renames, a death in between would leave
 * a whole tree under no name. */
static int exchange(const struct place *a, const struct place *b)
{
	int err = FAULT("remote.exchange", -EOPNOTSUPP);

	if (err)
		return err;
	if (!renameat2(a->parent, a->name, b->parent, b->name, RENAME_EXCHANGE))
		return 0;
	return errno == EINVAL || errno == ENOSYS ? -EOPNOTSUPP : -errno;
}

static int dir_exchange(struct remote *r, const char *a, const char *b)
{
	CLEANUP(job_end) struct job j;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(names_fini) struct names of_a = { 0 };
	CLEANUP(names_fini) struct names of_b = { 0 };
	int err = job_change(r, a, &j);

	if (!err)
		err = place_change(j.root, b, &p);
	if (!err)
		err = names_collect(j.d, j.root, a, &of_a);
	if (!err)
		err = names_collect(j.d, j.root, b, &of_b);
	if (!err)
		err = exchange(&j.at, &p);
	if (err)
		return err;
	err = names_remove(j.root, &of_a);
	if (!err)
		err = names_remove(j.root, &of_b);
	if (!err)
		err = names_write(j.root, &of_a, a, b);
	if (!err)
		err = names_write(j.root, &of_b, b, a);
	if (!err)
		err = dirty_add(j.d, j.at.parent);
	return err ? err : dirty_add(j.d, p.parent);
}

/* ---- reading ---------------------------------------------------------- */

static int list_open(DIR *dir, bool is_root,
		     int (*fn)(void *arg, const char *name), void *arg)
{
	const struct dirent *e;
	int err = 0;

	for (errno = 0; !err && (e = readdir(dir)); errno = 0) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    (is_root && !strcmp(e->d_name, REMOTE_PREFIX)))
			continue;
		err = fn(arg, e->d_name);
	}
	return err ? err : -errno;
}

static int dir_list(struct remote *r, const char *path,
		    int (*fn)(void *arg, const char *name), void *arg)
{
	CLEANUP(job_end) struct job j;
	DIR *dir;
	int fd, err = job_begin(r, path, &j);

	if (err)
		return err;
	fd = open_anyway(j.at.parent, j.at.name,
			 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return fd == -ELOOP ? -ENOTDIR : fd;
	dir = fdopendir(fd);
	if (!dir) {
		err = -errno;
		close(fd);
		return err;
	}
	err = list_open(dir, !*path, fn, arg);
	closedir(dir);
	return err;
}

/* A hostile store may put a fifo there: never block in open. */
static int open_file(const struct place *at, int *fd)
{
	struct stat st;

	*fd = open_anyway(at->parent, at->name,
			  O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (*fd < 0)
		return *fd == -ELOOP ? -EINVAL : *fd;
	if (!fstat(*fd, &st) && S_ISREG(st.st_mode))
		return 0;
	close(*fd);
	return -EISDIR;
}

static ssize_t dir_read(struct remote *r, const char *path, void *buf,
			size_t len, uint64_t off)
{
	CLEANUP(job_end) struct job j;
	int fd, err = job_begin(r, path, &j);
	ssize_t n;

	if (!err)
		err = open_file(&j.at, &fd);
	if (err)
		return err;
	n = pread_most(fd, buf, len, off);
	close(fd);
	return n;
}

struct remote_object {
	int fd;
	bool watched;   /* of others: no checksums tell when it is changed */
	struct stat st; /* as it was opened */
};

/* Which one it is, is asked of the descriptor that will be read. */
static int check_object(struct job *j, struct remote_object *o,
			const char *path, const char *object)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	CLEANUP(remote_attr_fini) struct remote_attr now = { 0 };
	int err;

	if (!object[0])
		return 0;
	n.fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 0);
	if (n.fd < 0)
		return -errno;
	snprintf(n.proc, sizeof(n.proc), "/proc/self/fd/%d", n.fd);
	err = node_stat(&n);
	if (!err)
		err = node_get_attr(j->d, j->root, &n, path, &now);
	if (err)
		return err;
	o->watched = remote_object_is_of_others(object);
	o->st = n.st;
	return remote_object_fits(object, &now) ? 0 : -ENOENT;
}

static int dir_open_object(struct remote *r, const char *path,
			   const char *object, struct remote_object **out)
{
	CLEANUP(job_end) struct job j;
	CLEANUP(free_p) struct remote_object *o = calloc(1, sizeof(*o));
	int err = job_begin(r, path, &j);

	if (!err)
		err = o ? open_file(&j.at, &o->fd) : -ENOMEM;
	if (err)
		return err == -ENOTDIR || err == -EISDIR ? -ENOENT : err;
	err = check_object(&j, o, path, object);
	if (err) {
		close(o->fd);
		return err;
	}
	*out = MOVE(o);
	return 0;
}

static bool has_changed(const struct remote_object *o)
{
	struct stat now;

	return fstat(o->fd, &now) || now.st_size != o->st.st_size ||
	       now.st_mtim.tv_sec != o->st.st_mtim.tv_sec ||
	       now.st_mtim.tv_nsec != o->st.st_mtim.tv_nsec;
}

static ssize_t dir_read_object(struct remote_object *o, void *buf, size_t len,
			       uint64_t off)
{
	ssize_t n = pread_most(o->fd, buf, len, off);

	return n >= 0 && o->watched && has_changed(o) ? -EBADMSG : n;
}

static void dir_close_object(struct remote_object *o)
{
	close(o->fd);
	free(o);
}

static int dir_room(struct remote *r, uint64_t *total, uint64_t *avail)
{
	CLEANUP(root_putp) struct dir_root *root = NULL;
	struct statvfs st;
	int err = root_get(remote_dir(r), &root);

	if (err)
		return err;
	if (fstatvfs(root->fd, &st))
		return -errno;
	*total = (uint64_t)st.f_blocks * st.f_frsize;
	*avail = (uint64_t)st.f_bavail * st.f_frsize;
	return 0;
}

/* ---- the kind --------------------------------------------------------- */

static const struct remote_ops dir_ops = {
	.scheme = "dir",
	.attach = dir_attach,
	.stage = dir_stage,
	.restage = dir_restage,
	.place = dir_place,
	.unstage = dir_unstage,
	.unstage_all = dir_unstage_all,
	.mkdir = dir_mkdir,
	.symlink = dir_symlink,
	.link = dir_link,
	.remove = dir_remove,
	.rename = dir_rename,
	.exchange = dir_exchange,
	.set_attr = dir_set_attr,
	.get_attr = dir_get_attr,
	.list = dir_list,
	.read = dir_read,
	.open_object = dir_open_object,
	.read_object = dir_read_object,
	.close_object = dir_close_object,
	.sync = dir_sync,
	.probe = dir_probe,
	.room = dir_room,
	.close = dir_close,
};

void remote_dir_without_xattrs(struct remote *r)
{
	remote_dir(r)->no_xattrs = true;
}

int remote_dir_open(const char *rest, struct remote **out)
{
	struct remote_dir *d;
	size_t len = strlen(rest);

	while (len > 1 && rest[len - 1] == '/')
		len--;
	if (rest[0] != '/' || len < 2)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	mutex_init(&d->lock);
	condition_init(&d->bounded_over);
	LIST_INIT(&d->staged);
	d->remote.ops = &dir_ops;
	d->remote.n_holds = 1;
	d->path = strndup(rest, len);
	if (!d->path || asprintf(&d->remote.name, "dir:%s", d->path) < 0) {
		d->remote.name = NULL;
		dir_close(&d->remote);
		return -ENOMEM;
	}
	*out = &d->remote;
	return 0;
}
