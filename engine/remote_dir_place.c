/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an object gets its name on a directory remote: one rename out of
 * .ckptfs/staged/, so a listing never shows a part of it. A second name is a
 * copy, for a hard link would share its label.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/remote_dir.h"
#include "metadata/fault.h"

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
		return staged_write_name(root, path, tag, &n->st);
	/* What stood there for another object is litter. */
	return name_remove(root, path);
}

/* temp in staged/ becomes the object at path. */
static int move_in(struct remote_dir *d, struct dir_root *root,
		   const char *temp, const char *path)
{
	CLEANUP(place_close) struct place p = { .parent = -1 };
	CLEANUP(node_close) struct node n = { .fd = -1 };
	char tag[TAG_LEN], was_path[META_NAME_MAX + 1];
	struct before before;
	int err = place_change(root, path, &p);

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
		err = name_remove(root, was_path);
	}
	before_forget(root, &before, tag);
	return err ? err : dirty_add(d, p.parent);
}

/* ---- place ------------------------------------------------------------ */

static int dress_again(struct remote_dir *d, struct dir_root *root,
		       const struct remote_attr *attr)
{
	CLEANUP(node_close) struct node n = { .fd = -1 };
	CLEANUP(close_p) int fd = -1;
	char tag[TAG_LEN];
	int err = staged_label(d, root, attr->identity, &n, tag);

	if (!err && !tag[0])
		err = staged_new_tag(attr->identity, tag);
	/* Its inode may still be shown at its old name: see restage(). */
	if (!err)
		err = staged_expect(root, tag, &n.st, attr->mtime_ns);
	if (err && err != -ENOENT)
		return err;
	fd = node_reopen(&n, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fd;
	return staged_dress(d, root, fd, attr->identity, attr->identity, tag,
			    attr);
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
	if (!staged_is_there(root, attr))
		return is_placed(r, path, attr);
	if (!staged_is_dressed(d, attr))
		err = dress_again(d, root, attr);
	if (!err)
		err = move_in(d, root, attr->identity, path);
	if (!err)
		staged_forget(d, attr->identity);
	return err;
}

/* ---- link ------------------------------------------------------------- */

static int link_copy(struct remote_dir *d, struct dir_root *root,
		     const struct place *from, const struct remote_attr *attr,
		     const char *to)
{
	char temp[64];
	int err;

	temp_name(d, temp);
	err = staged_copy(d, root, from, attr, temp, temp);
	if (!err)
		err = move_in(d, root, temp, to);
	if (err)
		staged_remove(d, root, temp);
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
