/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names: looking them up, making and removing them (renaming: rename.c,
 * regular files: create.c). Every change is one transaction with one event.
 */
#include <errno.h>
#include <string.h>

#include "fs/event.h"
#include "fs/hidden.h"
#include "fs/node.h"
#include "metadata/fault.h"

/* ino 0: the kernel may remember that there is no such name. */
static void reply_absent(fuse_req_t req)
{
	struct fuse_entry_param e = { .entry_timeout = KEEP_S };

	fuse_reply_entry(req, &e);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = fs_of(req);
	struct dentry_rec d = { 0 };
	int err;

	if (ino_is_tensor(parent)) {
		tensor_lookup(req, parent, name);
		return;
	}
	if (strlen(name) > META_NAME_MAX)
		err = -ENAMETOOLONG;
	else if (ino_is_hidden(parent) || name_is_hidden(parent, name))
		err = hidden_lookup(parent, name, &d.ino);
	else
		err = view_lookup(fs->view, parent, name, &d);
	if (err == -ENOENT)
		reply_absent(req);
	else
		reply_entry(req, d.ino, err);
}

void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	tensor_forget(fs_of(req), ino, nlookup);
	fuse_reply_none(req);
}

void op_forget_multi(fuse_req_t req, size_t count,
		     struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++)
		tensor_forget(fs_of(req), forgets[i].ino, forgets[i].nlookup);
	fuse_reply_none(req);
}

void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[META_PATH_MAX];
	int err = view_symlink(fs_of(req)->view, tensor_real_ino(ino), target);

	if (err)
		reply_result(req, err);
	else
		fuse_reply_readlink(req, target);
}

/* ---- making ----------------------------------------------------------- */

static int put_event(struct fs *fs, struct txn *t, const struct node *node,
		     const char *target)
{
	struct event_name n = { .parent = node->parent,
				.name = node->name,
				.target = target };

	if (S_ISDIR(node->rec.mode))
		n.kind = EVENT_MKDIR;
	else if (S_ISLNK(node->rec.mode))
		n.kind = EVENT_SYMLINK;
	else
		return 0;
	return event_of_name(fs, t, &n, &node->rec);
}

static int commit_new(struct fs *fs, struct node *node, const char *target)
{
	struct txn *t = engine_txn_begin(fs->engine);
	uint64_t seq;
	int err = node_check_new(fs, node);

	if (!err)
		err = put_event(fs, t, node, target);
	if (err) {
		engine_txn_abort(fs->engine, t);
		return err;
	}
	node_put(t, node);
	if (target)
		txn_put_symlink(t, node->rec.ino, target);
	return engine_txn_commit(fs->engine, t, &seq);
}

static void make(fuse_req_t req, uint64_t parent, const char *name, mode_t mode,
		 dev_t rdev, const char *target)
{
	struct fuse_entry_param e = { .attr_timeout = KEEP_S,
				      .entry_timeout = KEEP_S };
	struct fs *fs = fs_of(req);
	struct node node;
	int err = node_init(fs, fuse_req_ctx(req), parent, name, mode, &node);

	if (!err) {
		node.rec.rdev = rdev;
		node.rec.size = target ? strlen(target) : 0;
		err = commit_new(fs, &node, target);
	}
	if (err) {
		reply_result(req, err);
		return;
	}
	e.ino = node.rec.ino;
	stat_of_rec(&node.rec, &e.attr);
	fuse_reply_entry(req, &e);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	      dev_t rdev)
{
	if (S_ISREG(mode))
		make_file(req, parent, name, mode);
	else
		make(req, parent, name, mode, rdev, NULL);
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	make(req, parent, name, S_IFDIR | (mode & ~(mode_t)S_IFMT), 0, NULL);
}

void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		const char *name)
{
	if (strlen(target) >= META_PATH_MAX)
		reply_result(req, -ENAMETOOLONG);
	else
		make(req, parent, name, S_IFLNK | 0777, 0, target);
}

static int may_link(const struct inode_rec *rec)
{
	if (S_ISDIR(rec->mode))
		return -EPERM;
	if (!rec->nlink)
		return -ENOENT;
	return rec->nlink < FS_LINK_MAX ? 0 : -EMLINK;
}

/* Door held. The record's own times and owner stay, but for ctime. */
static int add_link(struct fs *fs, struct txn *t, uint64_t ino,
		    struct node *node)
{
	struct inode_rec *rec = &node->rec;
	int err = view_inode(fs->view, ino, rec);

	if (!err)
		err = may_link(rec);
	if (!err)
		err = node_check_free(fs, node);
	if (err)
		return err;
	rec->nlink++;
	rec->ctime_ns = node->dir.ctime_ns;
	err = event_of_link(fs, t, node->parent, node->name, rec);
	if (!err)
		node_put(t, node);
	return err;
}

/* A file being written is sealed first, so that the new name has content. */
static int commit_link(struct fs *fs, uint64_t ino, struct node *node)
{
	struct txn *t;
	uint64_t seq;
	int err = file_seal_written(fs->engine, ino);

	if (err)
		return err;
	t = engine_txn_begin(fs->engine);
	err = add_link(fs, t, ino, node);
	if (err) {
		engine_txn_abort(fs->engine, t);
		return err;
	}
	return engine_txn_commit(fs->engine, t, &seq);
}

void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
	     const char *newname)
{
	struct node node = { .parent = newparent, .name = newname };
	int err = name_may_change(newparent, newname);

	if (!err && ino_is_hidden(ino))
		err = -EPERM;
	if (!err)
		err = commit_link(fs_of(req), ino, &node);
	reply_entry(req, ino, err);
}

/* ---- removing --------------------------------------------------------- */

static int may_remove(struct fs *fs, const struct node *node, bool rmdir)
{
	bool empty;
	int err;

	if (!S_ISDIR(node->rec.mode))
		return rmdir ? -ENOTDIR : 0;
	if (!rmdir)
		return -EISDIR;
	err = view_dir_is_empty(fs->view, node->rec.ino, &empty);
	if (err)
		return err;
	return empty ? 0 : -ENOTEMPTY;
}

/* Door held. */
static int drop_name(struct fs *fs, struct txn *t, struct node *node,
		     bool rmdir)
{
	struct event_name n = { .kind = EVENT_UNLINK,
				.parent = node->parent,
				.name = node->name };
	int64_t now = fs_now_ns();
	int err = node_find(fs, node->parent, node->name, node);

	if (!err)
		err = may_remove(fs, node, rmdir);
	if (!err)
		err = event_of_name(fs, t, &n, &node->rec);
	if (err)
		return err;
	txn_frees(t);
	engine_drop_link(fs->engine, t, &node->rec, now);
	txn_del_dentry(t, node->parent, node->name, &node->d);
	if (rmdir)
		node->dir.nlink--;
	dir_stamp(&node->dir, now);
	txn_put_inode(t, &node->dir);
	return FAULT("unlink.drop", -ENOMEM);
}

static void remove_name(fuse_req_t req, uint64_t parent, const char *name,
			bool rmdir)
{
	struct node node = { .parent = parent, .name = name };
	struct fs *fs = fs_of(req);
	struct txn *t;
	uint64_t seq;
	int err = name_may_change(parent, name);

	if (err) {
		reply_result(req, err);
		return;
	}
	t = engine_txn_begin(fs->engine);
	err = drop_name(fs, t, &node, rmdir);
	if (err)
		engine_txn_abort(fs->engine, t);
	else
		err = engine_txn_commit(fs->engine, t, &seq);
	reply_result(req, err);
}

void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, false);
}

void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, true);
}
