/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding and making names inside a transaction. The kernel holds the
 * directory's lock meanwhile, but what it knows may come from its cache, so
 * every check is made again here, in the door.
 */
#include <errno.h>

#include "fs/node.h"

int node_init(struct fs *fs, const struct fuse_ctx *ctx, uint64_t parent,
	      const char *name, mode_t mode, struct node *out)
{
	int err = name_may_change(parent, name);

	if (err)
		return err;
	*out = (struct node){
		.parent = parent,
		.name = name,
		.rec = { .ino = meta_new_ino(fs->meta),
			 .mode = mode,
			 .uid = ctx->uid,
			 .gid = ctx->gid,
			 .nlink = S_ISDIR(mode) ? 2 : 1,
			 .parent = S_ISDIR(mode) ? parent : 0 },
	};
	return 0;
}

static int find_dir(struct fs *fs, uint64_t ino, struct inode_rec *out)
{
	int err = view_inode(fs->view, ino, out);

	if (err)
		return err;
	if (!S_ISDIR(out->mode))
		return -ENOTDIR;
	return out->nlink ? 0 : -ENOENT;
}

/* The path must fit into an event, at the seal at the latest. */
static int path_fits(struct fs *fs, const struct node *node)
{
	char path[META_PATH_MAX];

	if (!meta_keeps_events(fs->meta))
		return 0;
	return view_child_path(fs->view, node->parent, node->name, path);
}

int node_check_free(struct fs *fs, struct node *node)
{
	int err = find_dir(fs, node->parent, &node->dir);

	if (err)
		return err;
	err = view_lookup(fs->view, node->parent, node->name, &node->d);
	if (!err)
		return -EEXIST;
	if (err != -ENOENT)
		return err;
	dir_stamp(&node->dir, fs_now_ns());
	return path_fits(fs, node);
}

int node_check_new(struct fs *fs, struct node *node)
{
	struct inode_rec *rec = &node->rec;
	int err = node_check_free(fs, node);

	if (err)
		return err;
	if (S_ISDIR(rec->mode)) {
		if (node->dir.nlink == UINT32_MAX)
			return -EMLINK;
		node->dir.nlink++;
	}
	if (node->dir.mode & S_ISGID) {
		rec->gid = node->dir.gid;
		if (S_ISDIR(rec->mode))
			rec->mode |= S_ISGID;
	}
	rec->atime_ns = rec->mtime_ns = rec->ctime_ns = node->dir.mtime_ns;
	return 0;
}

void node_put(struct txn *t, struct node *node)
{
	txn_put_inode(t, &node->rec);
	txn_put_dentry(t, node->parent, node->name, node->rec.ino,
		       node->rec.mode & S_IFMT);
	txn_put_inode(t, &node->dir);
}

int node_find_in_dir(struct fs *fs, struct node *node)
{
	int err = view_lookup(fs->view, node->parent, node->name, &node->d);

	if (err == -ENOENT) {
		node->d = (struct dentry_rec){ 0 };
		return 0;
	}
	return err ? err : view_inode(fs->view, node->d.ino, &node->rec);
}

int node_find_maybe(struct fs *fs, uint64_t parent, const char *name,
		    struct node *out)
{
	int err;

	*out = (struct node){ .parent = parent, .name = name };
	err = find_dir(fs, parent, &out->dir);
	return err ? err : node_find_in_dir(fs, out);
}

int node_find(struct fs *fs, uint64_t parent, const char *name,
	      struct node *out)
{
	int err = node_find_maybe(fs, parent, name, out);

	if (!err && !out->d.ino)
		err = -ENOENT;
	return err;
}

void dir_stamp(struct inode_rec *dir, int64_t now_ns)
{
	dir->mtime_ns = dir->ctime_ns = now_ns;
}
