/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is at a name of a directory remote, and which version it is: an object
 * is told by a label, an xattr with the version's identity (or a record in
 * names/, where there are no xattrs). The label counts only with a sidecar
 * that fits (size, mtime): a file that was edited in place on the remote is
 * somebody else's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "engine/remote_dir.h"

/* ---- nodes ------------------------------------------------------------ */

int node_stat(struct node *n)
{
	return fstat(n->fd, &n->st) ? -errno : 0;
}

int node_open(int parent, const char *name, struct node *out)
{
	struct node n = {
		.fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC),
	};
	int err;

	if (n.fd < 0)
		return -errno;
	snprintf(n.proc, sizeof(n.proc), "/proc/self/fd/%d", n.fd);
	err = node_stat(&n);
	if (err) {
		close(n.fd);
		return err;
	}
	*out = n;
	return 0;
}

void node_close(struct node *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}

ssize_t node_xattr(const struct node *n, const char *name, void *value,
		   size_t len)
{
	ssize_t got = getxattr(n->proc, name, value, len);
	struct lent lent;
	int err;

	if (got >= 0 || errno != EACCES || lend(n->fd, S_IRUSR, &lent))
		return got;
	got = getxattr(n->proc, name, value, len);
	err = errno;
	lent_back(&lent);
	errno = err;
	return got;
}

/* The filesystem or our rights do not allow it; the sidecar will tell. */
bool is_refusal(int err)
{
	return err == -EPERM || err == -EOPNOTSUPP || err == -EINVAL ||
	       err == -ENOSYS || err == -EACCES;
}

bool is_xattr_refusal(int err)
{
	return is_refusal(err) || err == -E2BIG || err == -ENOSPC ||
	       err == -ERANGE || err == -ENOTTY;
}

/* ---- labels ----------------------------------------------------------- */

static int label_in_names(struct dir_root *root, struct node *n,
			  const char *path, char tag[TAG_LEN])
{
	struct sidecar s = { 0 };
	int err = name_read(root, path, &s);

	if (err)
		return err == -ENOENT || err == -EBADMSG || err == -EOPNOTSUPP
			       ? 0
			       : err;
	if (s.tag[0]) {
		memcpy(tag, s.tag, TAG_LEN);
		n->by_name = true;
	}
	sidecar_fini(&s);
	return 0;
}

int node_label(struct remote_dir *d, struct dir_root *root, struct node *n,
	       const char *path, char tag[TAG_LEN])
{
	ssize_t len = -1;

	tag[0] = '\0';
	n->by_name = false;
	if (!S_ISREG(n->st.st_mode))
		return 0;
	errno = EOPNOTSUPP;
	if (!d->no_xattrs)
		len = node_xattr(n, TAG_XATTR, tag, TAG_LEN - 1);
	if (len >= 0) {
		tag[len] = '\0';
		return 0;
	}
	tag[0] = '\0';
	if (errno == ENODATA || is_xattr_refusal(-errno))
		return label_in_names(root, n, path, tag);
	return -errno;
}

int node_set_label(struct remote_dir *d, struct node *n, const char *tag)
{
	n->by_name = true;
	if (d->no_xattrs)
		return -EOPNOTSUPP;
	if (!setxattr(n->proc, TAG_XATTR, tag, strlen(tag), 0)) {
		n->by_name = false;
		return 0;
	}
	return is_xattr_refusal(-errno) ? -EOPNOTSUPP : -errno;
}

int node_tag(struct remote_dir *d, struct dir_root *root, struct node *n,
	     const char *path, char tag[TAG_LEN], struct sidecar *side)
{
	struct sidecar s = { 0 };
	int err = node_label(d, root, n, path, tag);

	if (err || !tag[0])
		return err;
	err = sidecar_read(root, tag, &s);
	if (!err && !sidecar_fits(&s, &n->st)) {
		sidecar_fini(&s);
		err = -ENOENT;
	}
	if (err) {
		tag[0] = '\0';
		return err == -ENOENT || err == -EBADMSG || err == -EOPNOTSUPP
			       ? 0
			       : err;
	}
	if (side)
		*side = s;
	else
		sidecar_fini(&s);
	return 0;
}

void tag_identity(const char *tag, char identity[64])
{
	snprintf(identity, 64, "%.*s", (int)strcspn(tag, "."), tag);
}
