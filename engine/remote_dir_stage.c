/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How bytes come to a directory remote. A version is written under
 * .ckptfs/staged/, checked on the way, dressed with its attributes and label,
 * synced, given its sidecar, and only then called staged/<identity>. Placing
 * it is one rename, so a listing never shows a part of it.
 *
 *   staged/<identity>.tmp… → (fsync) → versions/<identity> → staged/<identity>
 *   → (rename) the object's name → (sync()) the directories
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/checksum.h"
#include "engine/fd_io.h"
#include "engine/flush.h"
#include "engine/remote_dir.h"
#include "engine/tier.h"
#include "metadata/fault.h"

#define WRITE_BEHIND (32u << 20) /* start writing back this often */
#define DROP_ABOVE (1u << 20)    /* longer ones do not stay in the page cache */
#define STALE_S (24 * 3600)      /* temporary names older than this go */
#define UUID_DIGITS 32
#define PART_LEN 128

/* ---- bytes ------------------------------------------------------------ */

static bool is_zero(const uint8_t *p, size_t len)
{
	return !len || (!p[0] && !memcmp(p, p + 1, len - 1));
}

/* Chunks of zeros stay holes. */
static int copy_chunks(int src, int dst, const struct remote_attr *a,
		       uint8_t *buf, _Atomic uint64_t *progress)
{
	for (uint64_t off = 0, i = 0; off < a->size; off += CHUNK_LEN, i++) {
		size_t len = a->size - off < CHUNK_LEN ? (size_t)(a->size - off)
						       : CHUNK_LEN;
		int err = pread_all(src, buf, len, off);

		if (!err && a->n_chunks && crc32c(0, buf, len) != a->crcs[i])
			err = -EBADMSG;
		if (!err && !is_zero(buf, len))
			err = pwrite_all(dst, buf, len, off);
		if (err)
			return err;
		if (off && off % WRITE_BEHIND == 0)
			(void)sync_file_range(dst, (off_t)(off - WRITE_BEHIND),
					      WRITE_BEHIND,
					      SYNC_FILE_RANGE_WRITE);
		if (progress)
			*progress += len;
	}
	return 0;
}

static int copy_bytes(int src, int dst, const struct remote_attr *a,
		      _Atomic uint64_t *progress)
{
	CLEANUP(free_p) uint8_t *buf = NULL;
	int err;

	if (a->n_chunks && a->n_chunks != N_CHUNKS(a->size))
		return -EINVAL;
	if (posix_memalign((void **)&buf, 4096, CHUNK_LEN))
		return -ENOMEM;
	err = copy_chunks(src, dst, a, buf, progress);
	if (!err && ftruncate(dst, (off_t)a->size))
		err = -errno;
	return err;
}

/* ---- dress ------------------------------------------------------------ */

static int copy_crcs(const struct remote_attr *from, struct remote_attr *to)
{
	if (!from->n_chunks)
		return 0;
	to->crcs = malloc(from->n_chunks * sizeof(*to->crcs));
	if (!to->crcs)
		return -ENOMEM;
	memcpy(to->crcs, from->crcs, from->n_chunks * sizeof(*to->crcs));
	to->n_chunks = from->n_chunks;
	return 0;
}

/* Where names/ keeps the label of a file in staged/ that has no xattrs. */
static void staged_path(const char *name, char out[META_NAME_MAX + 1])
{
	snprintf(out, META_NAME_MAX + 1, REMOTE_PREFIX "/staged/%s", name);
}

static int staged_label(struct remote_dir *d, struct dir_root *root,
			const char *name, struct node *n, char tag[TAG_LEN])
{
	char path[META_NAME_MAX + 1];
	int err = node_open(root->staged, name, n);

	staged_path(name, path);
	return err ? err : node_label(d, root, n, path, tag);
}

/* A label for names/: what st shows there is the object with this tag. */
static int write_name(struct dir_root *root, const char *path, const char *tag,
		      const struct stat *st)
{
	const int64_t mtime =
		st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
	struct sidecar s = {
		.path = (char *)path,
		.real_mtime = { mtime, mtime },
		.attr = { .mode = st->st_mode, .size = (uint64_t)st->st_size },
	};

	snprintf(s.tag, sizeof(s.tag), "%s", tag);
	return name_write(root, &s);
}

/*
 * Every object has a tag, and so a sidecar, of its own, although several may
 * hold the same version: each can be changed and removed by itself.
 */
static int new_tag(const char *identity, char tag[TAG_LEN])
{
	uint64_t random;

	tag[0] = '\0';
	if (!identity[0])
		return 0;
	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return -EIO;
	snprintf(tag, TAG_LEN, "%s.%016llx", identity,
		 (unsigned long long)random);
	return 0;
}

/* Attributes, label and sidecar of the file `name` in staged/, which is to be
 * called `later` there. tag "": of no version. */
static int dress(struct remote_dir *d, struct dir_root *root, int fd,
		 const char *name, const char *later, const char *tag,
		 const struct remote_attr *attr)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	CLEANUP(sidecar_fini) struct sidecar side = { 0 };
	char path[META_NAME_MAX + 1];
	bool by_name = false;
	int err = node_open(root->staged, name, &n);

	if (!err)
		err = node_set_attr(d, &n, attr, &side);
	if (!err)
		err = copy_crcs(attr, &side.attr);
	snprintf(side.tag, sizeof(side.tag), "%s", tag);
	/* The label last: it may be on an object that is shown already, and
	 * must lead to a record at any time. */
	if (!err && tag[0])
		err = sidecar_write(root, &side);
	if (!err && tag[0])
		err = node_set_label(d, &n, tag);
	if (err == -EOPNOTSUPP) {
		by_name = true;
		err = 0;
	}
	if (!err && fsync(fd))
		err = -errno;
	if (err || !by_name)
		return err;
	staged_path(later, path);
	return write_name(root, path, tag, &n.st);
}

/* ---- which attributes a staged version has --------------------------- */

static struct staged *find_staged_locked(struct remote_dir *d,
					 const char *identity)
	MUST_HOLD(d->lock);
static struct staged *find_staged_locked(struct remote_dir *d,
					 const char *identity)
{
	struct staged *s;

	LIST_FOREACH(s, &d->staged, next)
	if (!strcmp(s->identity, identity))
		return s;
	return NULL;
}

/* Only a note: without memory for it, place() dresses once more. */
static void note_staged(struct remote_dir *d, const struct remote_attr *attr)
{
	struct staged *fresh = calloc(1, sizeof(*fresh)), *s;

	mutex_lock(&d->lock);
	s = find_staged_locked(d, attr->identity);
	if (!s && fresh) {
		s = MOVE(fresh);
		memcpy(s->identity, attr->identity, sizeof(s->identity));
		LIST_INSERT_HEAD(&d->staged, s, next);
	}
	if (s)
		s->attr_hash = attr_hash(attr);
	mutex_unlock(&d->lock);
	free(fresh);
}

static bool is_dressed(struct remote_dir *d, const struct remote_attr *attr)
{
	struct staged *s;
	bool same;

	mutex_lock(&d->lock);
	s = find_staged_locked(d, attr->identity);
	same = s && s->attr_hash == attr_hash(attr);
	mutex_unlock(&d->lock);
	return same;
}

static void forget_staged(struct remote_dir *d, const char *identity)
{
	struct staged *s;

	mutex_lock(&d->lock);
	s = find_staged_locked(d, identity);
	if (s)
		LIST_REMOVE(s, next);
	mutex_unlock(&d->lock);
	free(s);
}

/* ---- stage ------------------------------------------------------------ */

static bool is_staged(struct dir_root *root, const struct remote_attr *attr)
{
	struct stat st;

	return !fstatat(root->staged, attr->identity, &st,
			AT_SYMLINK_NOFOLLOW) &&
	       S_ISREG(st.st_mode) && (uint64_t)st.st_size == attr->size;
}

static int fill_part(struct remote_dir *d, struct dir_root *root,
		     const char *part, const struct remote_attr *attr, int src,
		     _Atomic uint64_t *progress)
{
	char tag[TAG_LEN];
	CLEANUP(close_p)
	int fd = openat(root->staged, part,
			O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			0600);
	int err;

	if (fd < 0)
		return -errno;
	err = new_tag(attr->identity, tag);
	if (!err)
		err = copy_bytes(src, fd, attr, progress);
	if (!err)
		err = FAULT("remote.dress", -ENOSPC);
	if (!err)
		err = dress(d, root, fd, part, attr->identity, tag, attr);
	if (!err && attr->size > DROP_ABOVE)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return err;
}

/* With its sidecar, which no other object has. */
static void forget_file(struct remote_dir *d, struct dir_root *root,
			const char *name)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	char tag[TAG_LEN] = "", path[META_NAME_MAX + 1];

	if (staged_label(d, root, name, &n, tag))
		return;
	/* restage(): the object of the other name has the sidecar, too. */
	if (!unlinkat(root->staged, name, 0) && n.st.st_nlink == 1)
		sidecar_remove(root, tag);
	if (n.by_name) {
		staged_path(name, path);
		name_remove(root, path);
	}
}

/* The last step of staging: it is whole. */
static int part_done(struct remote_dir *d, struct dir_root *root,
		     const char *part, const struct remote_attr *attr, int err)
{
	if (!err && renameat(root->staged, part, root->staged, attr->identity))
		err = -errno;
	if (err)
		forget_file(d, root, part);
	else
		note_staged(d, attr);
	return err;
}

/* A name of its own for each try: a thread that a daemon left hanging in the
 * store may go on with the same version when another has begun. */
static void part_name(struct remote_dir *d, const struct remote_attr *attr,
		      char part[PART_LEN])
{
	char temp[64];

	temp_name(d, temp);
	snprintf(part, PART_LEN, "%s.%s", attr->identity, temp);
}

int dir_stage(struct remote *r, const struct remote_attr *attr, int fd,
	      _Atomic uint64_t *progress)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	char part[PART_LEN];
	int err = root_get(d, &root);

	if (err || is_staged(root, attr))
		return err;
	part_name(d, attr, part);
	err = fill_part(d, root, part, attr, fd, progress);
	return part_done(d, root, part, attr, err);
}

static void unstage(struct remote_dir *d, struct dir_root *root,
		    const char *identity)
{
	forget_file(d, root, identity);
	forget_staged(d, identity);
}

int dir_unstage(struct remote *r, const char *identity)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	int err = root_get(d, &root);

	if (!err)
		unstage(d, root, identity);
	return err;
}

/* Temporary names carry the second they were made in. */
static bool is_stale(const char *name)
{
	unsigned long long made;

	return !strncmp(name, "tmp-", 4) &&
	       (made = strtoull(name + 4, NULL, 16)) != 0 &&
	       made + STALE_S < (unsigned long long)time(NULL);
}

static void unstage_name(struct remote_dir *d, struct dir_root *root,
			 const char *name, const char *uuid)
{
	char identity[64];
	size_t len = strlen(name);

	if (is_stale(name)) {
		forget_file(d, root, name);
	} else if (len >= REMOTE_IDENTITY_LEN &&
		   !strncmp(name, uuid, UUID_DIGITS)) {
		snprintf(identity, sizeof(identity), "%.*s",
			 REMOTE_IDENTITY_LEN, name);
		forget_file(d, root, name);
		forget_staged(d, identity);
	}
}

int dir_unstage_all(struct remote *r, const char *uuid)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	const struct dirent *e;
	int fd, err = root_get(d, &root);
	DIR *dir;

	if (err)
		return err;
	fd = openat(root->staged, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		err = -errno;
		if (fd >= 0)
			close(fd);
		return err;
	}
	while ((e = readdir(dir)))
		unstage_name(d, root, e->d_name, uuid);
	closedir(dir);
	return 0;
}

/* ---- place ------------------------------------------------------------ */

int before_look(struct remote_dir *d, struct dir_root *root,
		const struct place *p, const char *path, struct before *out)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	int err = node_open(p->parent, p->name, &n);

	*out = (struct before){ 0 };
	if (err)
		return err == -ENOENT ? 0 : err;
	out->st = n.st;
	err = node_label(d, root, &n, path, out->tag);
	/* A label in names/ is the path's own, whatever the inode has. */
	out->by_name = n.by_name;
	out->shared = n.st.st_nlink > 1 && !n.by_name;
	return err;
}

void before_forget(struct dir_root *root, const struct before *b,
		   const char *new_tag)
{
	if (b->tag[0] && !b->shared && strcmp(b->tag, new_tag) != 0)
		sidecar_remove(root, b->tag);
}

/* The file in staged/ carries its label, or names/ will do so for path. */
static int label_for(struct dir_root *root, const struct node *n,
		     const char *path, const char *tag)
{
	if (n->by_name && tag[0])
		return write_name(root, path, tag, &n->st);
	/* What stood there for another object is litter. */
	name_remove(root, path);
	return 0;
}

/* temp in staged/ becomes the object at path. */
static int move_in(struct remote_dir *d, struct dir_root *root,
		   const char *temp, const char *path)
{
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(node_close) struct node n = { .fd = -1 };
	char tag[TAG_LEN], was_path[META_NAME_MAX + 1];
	struct before before;
	int err = place_open(root, path, &p);

	if (!err)
		err = before_look(d, root, &p, path, &before);
	if (!err && S_ISDIR(before.st.st_mode))
		err = -EISDIR;
	if (!err)
		err = staged_label(d, root, temp, &n, tag);
	if (!err)
		err = label_for(root, &n, path, tag);
	if (!err)
		err = FAULT("remote.place", -EIO);
	if (!err && renameat(root->staged, temp, p.parent, p.name))
		err = -errno;
	if (err)
		return err;
	(void)!FAULT("remote.placed", 0);
	if (n.by_name) {
		staged_path(temp, was_path);
		name_remove(root, was_path);
	}
	before_forget(root, &before, tag);
	err = dirty_add(d, p.parent);
	return err ? err : dirty_add(d, root->versions);
}

static int dress_again(struct remote_dir *d, struct dir_root *root,
		       const struct remote_attr *attr)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	CLEANUP(close_p) int fd = -1;
	char tag[TAG_LEN];
	int err = staged_label(d, root, attr->identity, &n, tag);

	if (!err && !tag[0])
		err = new_tag(attr->identity, tag);
	if (err)
		return err;
	fd = openat(root->staged, attr->identity,
		    O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return dress(d, root, fd, attr->identity, attr->identity, tag, attr);
}

/* It was placed before, by us or by the daemon that died. */
static int is_placed(struct remote *r, const char *path,
		     const struct remote_attr *attr)
{
	struct remote_attr now = { 0 };
	int err = dir_get_attr(r, path, &now);
	bool same = !err && !strcmp(now.identity, attr->identity);

	remote_attr_fini(&now);
	if (err)
		return err;
	return same ? dir_set_attr(r, path, attr) : -ENOENT;
}

int dir_place(struct remote *r, const char *path,
	      const struct remote_attr *attr)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	int err = root_get(d, &root);

	if (err)
		return err;
	if (!is_staged(root, attr))
		return is_placed(r, path, attr);
	if (!is_dressed(d, attr))
		err = dress_again(d, root, attr);
	if (!err)
		err = move_in(d, root, attr->identity, path);
	if (!err)
		forget_staged(d, attr->identity);
	return err;
}

/* ---- link ------------------------------------------------------------- */

static int copy_object(struct remote_dir *d, struct dir_root *root,
		       const struct place *from, const struct remote_attr *attr,
		       const char *temp, const char *later)
{
	char tag[TAG_LEN];
	CLEANUP(close_p)
	int src = openat(from->parent, from->name,
			 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	CLEANUP(close_p)
	int dst = src < 0 ? -1
			  : openat(root->staged, temp,
				   O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int err;

	if (dst < 0)
		return -errno;
	err = new_tag(attr->identity, tag);
	if (!err)
		err = copy_content(src, dst, attr->size, NULL);
	return err ? err : dress(d, root, dst, temp, later, tag, attr);
}

static int link_copy(struct remote_dir *d, struct dir_root *root,
		     const struct place *from, const struct remote_attr *attr,
		     const char *to)
{
	char temp[64];
	int err;

	temp_name(d, temp);
	err = copy_object(d, root, from, attr, temp, temp);
	if (!err)
		err = move_in(d, root, temp, to);
	if (err)
		forget_file(d, root, temp);
	return err;
}

static bool is_same_object(struct remote *r, const char *path,
			   const struct remote_attr *attr)
{
	struct remote_attr now = { 0 };
	bool same = attr->identity[0] && !dir_get_attr(r, path, &now) &&
		    !strcmp(now.identity, attr->identity);

	remote_attr_fini(&now);
	return same;
}

int dir_link(struct remote *r, const char *from, const char *to)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(remote_attr_fini) struct remote_attr attr = { 0 };
	int err = dir_get_attr(r, from, &attr);

	if (err)
		return err;
	if (S_ISLNK(attr.mode))
		return r->ops->symlink(r, to, &attr);
	if (!S_ISREG(attr.mode))
		return -EISDIR;
	if (is_same_object(r, to, &attr))
		return 0;
	err = root_get(d, &root);
	if (!err)
		err = place_open(root, from, &p);
	return err ? err : link_copy(d, root, &p, &attr, to);
}

/* ---- restage ---------------------------------------------------------- */

/*
 * Another name for the inode, under a new label; the old name goes soon, and
 * till then shares it. (With labels in names/ the old name keeps its own.)
 */
static int share_part(struct remote_dir *d, struct dir_root *root,
		      const struct place *from, const char *from_path,
		      const char *part, const struct remote_attr *attr)
{
	CLEANUP(close_p) int fd = -1;
	struct before was;
	char tag[TAG_LEN];
	int err = before_look(d, root, from, from_path, &was);

	if (!err)
		err = new_tag(attr->identity, tag);
	if (err)
		return err;
	if (linkat(from->parent, from->name, root->staged, part, 0))
		return -EOPNOTSUPP;
	fd = openat(root->staged, part,
		    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = dress(d, root, fd, part, attr->identity, tag, attr);
	if (!err && !was.by_name)
		sidecar_remove(root, was.tag); /* of the label it had */
	return err;
}

int dir_restage(struct remote *r, const struct remote_attr *attr,
		const char *from)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	char part[PART_LEN];
	struct stat st;
	int err = root_get(d, &root);

	if (err || is_staged(root, attr))
		return err;
	err = from ? place_open(root, from, &p) : -ENOENT;
	if (!err && fstatat(p.parent, p.name, &st, AT_SYMLINK_NOFOLLOW))
		err = -errno;
	if (!err &&
	    (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != attr->size))
		err = -ENOENT;
	if (err)
		return err;
	part_name(d, attr, part);
	err = share_part(d, root, &p, from, part, attr);
	if (err == -EOPNOTSUPP)
		err = copy_object(d, root, &p, attr, part, attr->identity);
	return part_done(d, root, part, attr, err);
}
