/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a file in .ckptfs/staged/ wears: its attributes, the label that says
 * which version it is, and the sidecar that the label leads to. And which of
 * them were staged with the attributes they have now.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "engine/flush.h"
#include "engine/remote_dir.h"

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
void staged_path(const char *name, char out[META_NAME_MAX + 1])
{
	snprintf(out, META_NAME_MAX + 1, REMOTE_PREFIX "/staged/%s", name);
}

int staged_label(struct remote_dir *d, struct dir_root *root, const char *name,
		 struct node *n, char tag[TAG_LEN])
{
	char path[META_NAME_MAX + 1];
	int err = node_open(root->staged, name, n);

	staged_path(name, path);
	return err ? err : node_label(d, root, n, path, tag);
}

/* A label for names/: what st shows there is the object with this tag. */
int staged_write_name(struct dir_root *root, const char *path, const char *tag,
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
int staged_new_tag(const char *identity, char tag[TAG_LEN])
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

int staged_expect(struct dir_root *root, const char *tag, const struct stat *st,
		  int64_t mtime_ns)
{
	const int64_t now =
		st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
	struct sidecar side;
	int err;

	if (now == mtime_ns)
		return 0;
	err = sidecar_read(root, tag, &side);
	if (err)
		return err == -EBADMSG || err == -EOPNOTSUPP ? -ENOENT : err;
	err = -ENOENT;
	if (sidecar_fits(&side, st)) {
		side.real_mtime[0] = now;
		side.real_mtime[1] = mtime_ns;
		err = sidecar_write(root, &side);
	}
	sidecar_fini(&side);
	return err;
}

/* Attributes, label and sidecar of the file `name` in staged/, which is to be
 * called `later` there. tag "": of no version. */
int staged_dress(struct remote_dir *d, struct dir_root *root, int fd,
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
	return staged_write_name(root, path, tag, &n.st);
}

bool staged_is_there(struct dir_root *root, const struct remote_attr *attr)
{
	struct stat st;

	return !fstatat(root->staged, attr->identity, &st,
			AT_SYMLINK_NOFOLLOW) &&
	       S_ISREG(st.st_mode) && (uint64_t)st.st_size == attr->size;
}

/* With its sidecar, which no other object has. */
void staged_remove(struct remote_dir *d, struct dir_root *root,
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
		(void)!name_remove(root, path); /* litter */
	}
}

int staged_copy(struct remote_dir *d, struct dir_root *root,
		const struct place *from, const struct remote_attr *attr,
		const char *temp, const char *later)
{
	char tag[TAG_LEN];
	CLEANUP(close_p)
	int src = open_anyway(from->parent, from->name,
			      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	CLEANUP(close_p)
	int dst = src < 0 ? -1
			  : openat(root->staged, temp,
				   O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int err;

	if (src < 0)
		return src;
	if (dst < 0)
		return -errno;
	err = staged_new_tag(attr->identity, tag);
	if (!err)
		err = copy_content(src, dst, attr->size, NULL);
	return err ? err : staged_dress(d, root, dst, temp, later, tag, attr);
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
void staged_note(struct remote_dir *d, const struct remote_attr *attr)
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

bool staged_is_dressed(struct remote_dir *d, const struct remote_attr *attr)
{
	struct staged *s;
	bool same;

	mutex_lock(&d->lock);
	s = find_staged_locked(d, attr->identity);
	same = s && s->attr_hash == attr_hash(attr);
	mutex_unlock(&d->lock);
	return same;
}

void staged_forget(struct remote_dir *d, const char *identity)
{
	struct staged *s;

	mutex_lock(&d->lock);
	s = find_staged_locked(d, identity);
	if (s)
		LIST_REMOVE(s, next);
	mutex_unlock(&d->lock);
	free(s);
}
