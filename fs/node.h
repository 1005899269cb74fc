/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name and what it stands for, while a transaction changes it. All
 * functions but node_init() want the door to be held: engine_txn_begin() came
 * before, commit or abort comes after.
 */
#ifndef CKPT_FS_NODE_H
#define CKPT_FS_NODE_H

#include "fs/fs.h"

struct node {
	uint64_t parent;
	const char *name;
	struct inode_rec dir; /* the parent's record */
	struct dentry_rec d;  /* ino 0: there is no such name */
	struct inode_rec rec; /* what it stands for */
};

/*
 * Something to be made: a fresh inode number, owner from the caller. Not yet
 * in the door.
 *
 *   -EPERM, -ENAMETOOLONG  as name_may_change()
 */
MUST_CHECK int node_init(struct fs *fs, const struct fuse_ctx *ctx,
			 uint64_t parent, const char *name, mode_t mode,
			 struct node *out);
/*
 * The parent is there and the name is free; the parent's record is stamped.
 *
 *   -EEXIST        node->d says what is there
 *   -ENOENT        the parent is gone
 *   -ENAMETOOLONG  its path is too long for the remote there is
 */
MUST_CHECK int node_check_free(struct fs *fs, struct node *node);
/* The same for something new: group, set-gid and times are set as well. */
MUST_CHECK int node_check_new(struct fs *fs, struct node *node);
/* Puts the inode, its new name and the parent. */
void node_put(struct txn *t, struct node *node);

/* Finds parent and name, and what it stands for. -ENOENT: parent or name */
MUST_CHECK int node_find(struct fs *fs, uint64_t parent, const char *name,
			 struct node *out);
/* As above; a name that is not there leaves d.ino 0. */
MUST_CHECK int node_find_maybe(struct fs *fs, uint64_t parent, const char *name,
			       struct node *out);
/* Again, in node->dir, which is known. */
MUST_CHECK int node_find_in_dir(struct fs *fs, struct node *node);
/* Entries of a directory changed. */
void dir_stamp(struct inode_rec *dir, int64_t now_ns);

#endif
