/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New regular files. The backing file and the handle come first, then the
 * transaction that gives the inode its name, so that a name without content
 * is never seen. A remote learns of the file at its first seal.
 */
#include <errno.h>
#include <fcntl.h>

#include "fs/capture.h"
#include "fs/errand.h"
#include "fs/node.h"

/* Door held. */
static int put_file(struct fs *fs, struct txn *t, struct node *node)
{
	int err = node_check_new(fs, node);

	if (err)
		return err;
	node_put(t, node);
	file_log_create(fs->engine, t, node->rec.ino);
	return 0;
}

static int commit_file(struct fs *fs, struct node *node)
{
	struct txn *t = engine_txn_begin_create(fs->engine);
	uint64_t seq;
	int err = put_file(fs, t, node);

	if (err) {
		engine_txn_abort(fs->engine, t);
		return err;
	}
	return engine_txn_commit(fs->engine, t, &seq);
}

/* -EEXIST: node->d says what is there. */
static int create_file(struct fs *fs, struct node *node, int flags,
		       struct open_reply *out)
{
	uint64_t expected = expected_take(fs->expected, node->parent,
					  node->name, node->rec.uid);
	int err = file_create(fs->engine, node->rec.ino, flags, expected, out);

	if (err)
		return err;
	err = commit_file(fs, node);
	if (err)
		file_cancel(fs->engine, node->rec.ino, out->fh);
	return err;
}

/* Somebody was faster. */
static int open_existing(struct fs *fs, const struct fuse_ctx *ctx,
			 const struct dentry_rec *d, int flags, bool patient,
			 struct open_reply *out)
{
	int err;

	if (flags & O_EXCL)
		return -EEXIST;
	if (!S_ISREG(d->type))
		return S_ISDIR(d->type) ? -EISDIR : -ESTALE;
	err = open_kills_priv(fs, d->ino, flags, ctx->uid);
	return err ? err : file_open(fs->engine, d->ino, flags, patient, out);
}

static void reply_create(fuse_req_t req, uint64_t ino,
			 struct fuse_file_info *fi, const struct open_reply *o)
{
	struct fs *fs = fs_of(req);
	struct fuse_entry_param e;
	int err = entry_of_ino(fs, ino, &e);

	fill_open(fi, o);
	if (err)
		reply_result(req, err);
	/* -ENOENT: interrupted, the kernel will not release it. */
	else if (!fuse_reply_create(req, &e, fi))
		return;
	file_release(fs->engine, ino, o->fh);
}

static bool create_or_open(const struct errand *w, bool patient)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(w->req);
	struct fuse_file_info fi = w->fi;
	struct fs *fs = fs_of(w->req);
	struct open_reply o;
	struct node node;
	uint64_t ino = 0;
	int err = node_init(fs, ctx, w->ino, w->name,
			    S_IFREG | (w->mode & 07777), &node);

	if (!err) {
		ino = node.rec.ino;
		err = create_file(fs, &node, fi.flags, &o);
	}
	if (err == -EEXIST) {
		ino = node.d.ino;
		err = open_existing(fs, ctx, &node.d, fi.flags, patient, &o);
	}
	if (err == -EINPROGRESS)
		return false;
	if (err)
		reply_result(w->req, err);
	else
		reply_create(w->req, ino, &fi, &o);
	return true;
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi)
{
	errand_do(&(struct errand){ .run = create_or_open,
				    .req = req,
				    .ino = parent,
				    .name = name,
				    .mode = mode,
				    .fi = *fi });
}

/* What mknod made was written by nobody; closing it makes it a version. */
void make_file(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct fs *fs = fs_of(req);
	struct open_reply o;
	struct node node;
	int err = node_init(fs, fuse_req_ctx(req), parent, name,
			    S_IFREG | (mode & 07777), &node);

	if (!err)
		err = create_file(fs, &node, O_WRONLY, &o);
	if (err) {
		reply_result(req, err);
		return;
	}
	err = file_flush(fs->engine, node.rec.ino, o.fh);
	file_release(fs->engine, node.rec.ino, o.fh);
	reply_entry(req, node.rec.ino, err);
}
