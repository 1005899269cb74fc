/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes of what lies in a directory remote: set as the real thing as far
 * as the filesystem and our rights go; what is left goes into a sidecar, and
 * from there wins over what the object says.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "engine/remote_dir.h"

#define NS INT64_C(1000000000)
#define ATTEMPTS 4

static int64_t mtime_of(const struct stat *st)
{
	return st->st_mtim.tv_sec * NS + st->st_mtim.tv_nsec;
}

/* ---- setting ---------------------------------------------------------- */

static int set_owner(struct node *n, const struct remote_attr *a,
		     struct sidecar *left)
{
	if (n->st.st_uid == a->uid && n->st.st_gid == a->gid)
		return 0;
	if (!fchownat(n->fd, "", a->uid, a->gid, AT_EMPTY_PATH))
		return 0;
	if (!is_refusal(-errno))
		return -errno;
	left->flags |= SIDE_OWNER;
	return 0;
}

/* After the owner: a change of owner takes the set-id bits away. */
static int set_mode(struct node *n, const struct remote_attr *a,
		    struct sidecar *left)
{
	const mode_t want = a->mode & 07777;
	int err;

	if (S_ISLNK(n->st.st_mode))
		return 0;
	err = node_stat(n);
	if (err || (n->st.st_mode & 07777) == want)
		return err;
	if (chmod(n->proc, want) && !is_refusal(-errno))
		return -errno;
	err = node_stat(n);
	if (!err && (n->st.st_mode & 07777) != want)
		left->flags |= SIDE_MODE;
	return err;
}

static bool is_real_xattr(const char *name)
{
	return (!strncmp(name, "user.", 5) || !strncmp(name, "trusted.", 8)) &&
	       strncmp(name, OWN_XATTRS, strlen(OWN_XATTRS)) != 0;
}

/* The names of a node's xattrs, NUL-separated; *len 0: none. */
static int list_xattrs(struct remote_dir *d, const struct node *n, char **out,
		       size_t *len)
{
	*out = NULL;
	*len = 0;
	if (d->no_xattrs || S_ISLNK(n->st.st_mode))
		return 0;
	for (int i = 0; i < ATTEMPTS; i++) { /* the list may grow meanwhile */
		ssize_t need = listxattr(n->proc, NULL, 0);

		if (need <= 0)
			return !need || is_xattr_refusal(-errno) ? 0 : -errno;
		free(*out);
		*out = malloc((size_t)need + 1);
		if (!*out)
			return -ENOMEM;
		need = listxattr(n->proc, *out, (size_t)need);
		if (need >= 0) {
			(*out)[need] = '\0';
			*len = (size_t)need;
			return 0;
		}
		if (errno != ERANGE)
			return -errno;
	}
	return -EAGAIN;
}

static bool wants_xattr(const struct remote_attr *a, const char *name)
{
	for (uint32_t i = 0; i < a->n_xattrs; i++)
		if (!strcmp(a->xattrs[i].name, name))
			return true;
	return false;
}

static int drop_unwanted_xattrs(struct remote_dir *d, struct node *n,
				const struct remote_attr *a)
{
	CLEANUP(free_p) char *names = NULL;
	size_t len, at = 0;
	int err = list_xattrs(d, n, &names, &len);

	for (; !err && at < len; at += strlen(names + at) + 1) {
		const char *name = names + at;

		if (!is_real_xattr(name) || wants_xattr(a, name))
			continue;
		if (removexattr(n->proc, name) && errno != ENODATA &&
		    !is_xattr_refusal(-errno))
			err = -errno;
	}
	return err;
}

static int set_xattr(struct remote_dir *d, struct node *n,
		     const struct remote_xattr *x, struct sidecar *left)
{
	if (!strncmp(x->name, OWN_XATTRS, strlen(OWN_XATTRS)))
		return 0;
	if (!d->no_xattrs && is_real_xattr(x->name) &&
	    !S_ISLNK(n->st.st_mode)) {
		if (!setxattr(n->proc, x->name, x->value, x->len, 0))
			return 0;
		if (!is_xattr_refusal(-errno))
			return -errno;
	}
	return remote_attr_set_xattr(&left->attr, x->name, x->value, x->len);
}

static int set_xattrs(struct remote_dir *d, struct node *n,
		      const struct remote_attr *a, struct sidecar *left)
{
	int err = drop_unwanted_xattrs(d, n, a);

	for (uint32_t i = 0; i < a->n_xattrs && !err; i++)
		err = set_xattr(d, n, &a->xattrs[i], left);
	return err;
}

static struct timespec timespec_of(int64_t ns)
{
	struct timespec t = { ns / NS, ns % NS };

	if (t.tv_nsec < 0) {
		t.tv_sec--;
		t.tv_nsec += NS;
	}
	return t;
}

static int set_mtime(struct node *n, const struct remote_attr *a,
		     struct sidecar *left)
{
	const struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT },
					timespec_of(a->mtime_ns) };
	int err, rc;

	if (mtime_of(&n->st) == a->mtime_ns)
		return 0;
	if (S_ISLNK(n->st.st_mode))
		rc = utimensat(n->fd, "", ts, AT_EMPTY_PATH);
	else
		rc = utimensat(AT_FDCWD, n->proc, ts, 0);
	if (rc && !is_refusal(-errno))
		return -errno;
	err = node_stat(n);
	if (!err && mtime_of(&n->st) != a->mtime_ns)
		left->flags |= SIDE_MTIME;
	return err;
}

int node_set_attr(struct remote_dir *d, struct node *n,
		  const struct remote_attr *a, struct sidecar *left)
{
	int err;

	*left = (struct sidecar){ .attr = {
					  .mode = (a->mode & 07777) |
						  (n->st.st_mode & S_IFMT),
					  .uid = a->uid,
					  .gid = a->gid,
					  .mtime_ns = a->mtime_ns,
				  } };
	err = set_owner(n, a, left);
	if (!err)
		err = set_xattrs(d, n, a, left);
	if (!err)
		err = set_mode(n, a, left);
	if (!err)
		err = node_stat(n);
	if (!err)
		err = set_mtime(n, a, left);
	if (!err)
		err = node_stat(n);
	left->attr.size = S_ISREG(n->st.st_mode) ? (uint64_t)n->st.st_size : 0;
	left->real_mtime[0] = left->real_mtime[1] = mtime_of(&n->st);
	return err;
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t len)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < len; i++)
		h = (h ^ b[i]) * UINT64_C(0x100000001b3);
	return h;
}

uint64_t attr_hash(const struct remote_attr *a)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

	h = hash_bytes(h, &a->mode, sizeof(a->mode));
	h = hash_bytes(h, &a->uid, sizeof(a->uid));
	h = hash_bytes(h, &a->gid, sizeof(a->gid));
	h = hash_bytes(h, &a->mtime_ns, sizeof(a->mtime_ns));
	for (uint32_t i = 0; i < a->n_xattrs; i++) {
		const struct remote_xattr *x = &a->xattrs[i];

		h = hash_bytes(h, x->name, strlen(x->name) + 1);
		h = hash_bytes(h, &x->len, sizeof(x->len));
		h = hash_bytes(h, x->value, x->len);
	}
	return h;
}

/* ---- on what is there ------------------------------------------------- */

/* Attributes are in the inode: that is what must be fsynced. */
static int node_dirty(struct remote_dir *d, const struct node *n)
{
	CLEANUP(close_p) int fd = -1;

	if (S_ISLNK(n->st.st_mode))
		return 0;
	fd = node_reopen(n, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? 0 : dirty_add(d, fd);
}

int plain_set_attr(struct remote_dir *d, struct dir_root *root, struct node *n,
		   const char *path, const struct remote_attr *attr)
{
	struct sidecar left;
	int err = node_set_attr(d, n, attr, &left);

	if (S_ISDIR(n->st.st_mode)) /* moves with every entry anyway */
		left.flags &= ~SIDE_MTIME;
	if (!err && (left.flags || left.attr.n_xattrs)) {
		left.path = strdup(path);
		err = left.path ? name_write(root, &left) : -ENOMEM;
	} else if (!err) {
		err = name_remove(root, path);
	}
	sidecar_fini(&left);
	return err ? err : node_dirty(d, n);
}

static bool same_leftover(const struct sidecar *a, const struct sidecar *b)
{
	return a->flags == b->flags && a->attr.mode == b->attr.mode &&
	       a->attr.uid == b->attr.uid && a->attr.gid == b->attr.gid &&
	       a->attr.mtime_ns == b->attr.mtime_ns &&
	       a->real_mtime[0] == b->real_mtime[0] &&
	       a->real_mtime[1] == b->real_mtime[1] &&
	       remote_attr_same_xattrs(&a->attr, &b->attr);
}

/* Both records of an object; names/ only if that is where its label is. */
static int write_records(struct dir_root *root, const struct node *n,
			 const char *path, const struct sidecar *s)
{
	struct sidecar by_name = {
		.path = (char *)path,
		.real_mtime = { s->real_mtime[0], s->real_mtime[1] },
		.attr = { .mode = s->attr.mode, .size = s->attr.size },
	};
	int err = sidecar_write(root, s);

	if (err || !n->by_name)
		return err;
	memcpy(by_name.tag, s->tag, TAG_LEN);
	return name_write(root, &by_name);
}

static int object_set_attr(struct remote_dir *d, struct dir_root *root,
			   struct node *n, const char *path,
			   struct sidecar *side, const struct remote_attr *attr)
{
	struct sidecar left = { 0 };
	int err = 0;

	if (mtime_of(&n->st) != attr->mtime_ns) {
		side->real_mtime[0] = mtime_of(&n->st);
		side->real_mtime[1] = attr->mtime_ns;
		err = write_records(root, n, path, side);
	}
	if (!err)
		err = node_set_attr(d, n, attr, &left);
	if (!err && !same_leftover(&left, side)) {
		memcpy(left.tag, side->tag, TAG_LEN);
		left.attr.n_chunks = side->attr.n_chunks;
		left.attr.crcs = MOVE(side->attr.crcs);
		side->attr.n_chunks = 0;
		err = write_records(root, n, path, &left);
	}
	sidecar_fini(&left);
	return err ? err : node_dirty(d, n);
}

int dir_set_attr(struct remote *r, const char *path,
		 const struct remote_attr *attr)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(node_close) struct node n = { .fd = -1 };
	struct sidecar side = { 0 };
	char tag[TAG_LEN];
	int err = root_get(d, &root);

	if (!err)
		err = place_open(root, path, &p);
	if (!err)
		err = node_open(p.parent, p.name, &n);
	if (!err)
		err = node_tag(d, root, &n, path, tag, &side);
	if (err)
		return err;
	if (tag[0])
		err = object_set_attr(d, root, &n, path, &side, attr);
	else
		err = plain_set_attr(d, root, &n, path, attr);
	sidecar_fini(&side);
	return err;
}

/* ---- reading ---------------------------------------------------------- */

static int get_xattr(const struct node *n, const char *name,
		     struct remote_attr *out)
{
	CLEANUP(free_p) void *value = NULL;

	for (int i = 0; i < ATTEMPTS; i++) {
		ssize_t len = node_xattr(n, name, NULL, 0);

		if (len < 0)
			return errno == ENODATA || is_xattr_refusal(-errno)
				       ? 0
				       : -errno;
		free(value);
		value = malloc((size_t)len + 1);
		if (!value)
			return -ENOMEM;
		len = node_xattr(n, name, value, (size_t)len + 1);
		if (len >= 0)
			return remote_attr_set_xattr(out, name, value,
						     (size_t)len);
		if (errno != ERANGE)
			return errno == ENODATA ? 0 : -errno;
	}
	return -EAGAIN;
}

static int get_xattrs(struct remote_dir *d, const struct node *n,
		      struct remote_attr *out)
{
	CLEANUP(free_p) char *names = NULL;
	size_t len, at = 0;
	int err = list_xattrs(d, n, &names, &len);

	for (; !err && at < len; at += strlen(names + at) + 1)
		if (is_real_xattr(names + at))
			err = get_xattr(n, names + at, out);
	return err;
}

static int get_target(const struct node *n, struct remote_attr *out)
{
	char target[META_PATH_MAX];
	ssize_t len = readlinkat(n->fd, "", target, sizeof(target));

	if (len < 0)
		return -errno;
	if (len == (ssize_t)sizeof(target))
		return -ENAMETOOLONG;
	out->target = strndup(target, (size_t)len);
	return out->target ? 0 : -ENOMEM;
}

/* What the sidecar knows better; takes its checksums. */
static int apply_sidecar(struct sidecar *s, struct remote_attr *out)
{
	const struct remote_attr *a = &s->attr;
	int err = 0;

	if (s->flags & SIDE_MODE)
		out->mode = (out->mode & S_IFMT) | (a->mode & 07777);
	if (s->flags & SIDE_OWNER) {
		out->uid = a->uid;
		out->gid = a->gid;
	}
	if (s->flags & SIDE_MTIME)
		out->mtime_ns = a->mtime_ns;
	for (uint32_t i = 0; i < a->n_xattrs && !err; i++)
		err = remote_attr_set_xattr(out, a->xattrs[i].name,
					    a->xattrs[i].value,
					    a->xattrs[i].len);
	tag_identity(s->tag, out->identity);
	out->n_chunks = a->n_chunks;
	out->crcs = MOVE(s->attr.crcs);
	s->attr.n_chunks = 0;
	return err;
}

static int get_sidecar(struct remote_dir *d, struct dir_root *root,
		       struct node *n, const char *path, struct sidecar *side)
{
	char tag[TAG_LEN];
	int err = node_tag(d, root, n, path, tag, side);

	if (err || tag[0])
		return err;
	err = name_read(root, path, side);
	if (err == -ENOENT || err == -EBADMSG || err == -EOPNOTSUPP)
		return 0;
	if (!err && (side->tag[0] || !sidecar_fits(side, &n->st)))
		sidecar_fini(side);
	return err;
}

int node_get_attr(struct remote_dir *d, struct dir_root *root, struct node *n,
		  const char *path, struct remote_attr *out)
{
	struct sidecar side = { 0 };
	int err = get_sidecar(d, root, n, path, &side);

	out->mode = n->st.st_mode;
	out->uid = n->st.st_uid;
	out->gid = n->st.st_gid;
	out->mtime_ns = mtime_of(&n->st);
	out->size = S_ISDIR(n->st.st_mode) ? 0 : (uint64_t)n->st.st_size;
	if (!err)
		err = get_xattrs(d, n, out);
	if (!err && S_ISLNK(n->st.st_mode))
		err = get_target(n, out);
	if (!err && side.attr.mode)
		err = apply_sidecar(&side, out);
	sidecar_fini(&side);
	return err;
}

int dir_get_attr(struct remote *r, const char *path, struct remote_attr *out)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(node_close) struct node n = { .fd = -1 };
	struct remote_attr a = { 0 };
	int err = root_get(d, &root);

	if (!err)
		err = place_open(root, path, &p);
	if (!err)
		err = node_open(p.parent, p.name, &n);
	if (!err)
		err = node_get_attr(d, root, &n, path, &a);
	if (err) {
		remote_attr_fini(&a);
		return err == -ENOTDIR ? -ENOENT : err;
	}
	*out = a;
	return 0;
}
