/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing a directory. Offsets are readdir cookies, which an entry keeps as
 * long as it lives, so a listing goes on where it was whatever was made or
 * removed meanwhile, and nothing is kept between two calls. Real cookies are
 * above 2: offset 1 is behind `.`, 2 behind `..`.
 */
#include <errno.h>

#include "fs/hidden.h"

struct listing {
	fuse_req_t req;
	struct fs *fs;
	char *buf;
	size_t size, used;
	bool plus;
};

/* 1: there is no room left for it. */
static int add(struct listing *l, const char *name,
	       const struct fuse_entry_param *e, off_t off)
{
	char *p = l->buf + l->used;
	size_t room = l->size - l->used, n;

	if (l->plus)
		n = fuse_add_direntry_plus(l->req, p, room, name, e, off);
	else
		n = fuse_add_direntry(l->req, p, room, name, &e->attr, off);
	if (n > room)
		return 1;
	l->used += n;
	return 0;
}

static int add_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	struct listing *l = arg;
	struct fuse_entry_param e = { .attr = { .st_ino = d->ino,
						.st_mode = d->type } };
	int err;

	if (l->plus) {
		err = entry_of_ino(l->fs, d->ino, &e);
		if (err == -ENOENT || err == -ESTALE)
			return 0; /* went while we looked */
		if (err)
			return err;
	}
	return add(l, name, &e, (off_t)d->cookie);
}

/* The kernel looks at number and type only; a node id would be counted. */
static int add_dots(struct listing *l, uint64_t ino, uint64_t parent, off_t off)
{
	struct fuse_entry_param dot = { .attr = { .st_ino = ino,
						  .st_mode = S_IFDIR } };
	struct fuse_entry_param dotdot = { .attr = { .st_ino = parent,
						     .st_mode = S_IFDIR } };
	int full = 0;

	if (off < 1)
		full = add(l, ".", &dot, 1);
	if (!full && off < 2)
		full = add(l, "..", &dotdot, 2);
	return full;
}

static int parent_of(struct fs *fs, uint64_t ino, uint64_t *parent)
{
	struct inode_rec rec;
	int err;

	*parent = META_ROOT_INO;
	if (ino == META_ROOT_INO || ino_is_hidden(ino))
		return 0;
	err = view_inode(fs->view, ino, &rec);
	if (err)
		return err;
	*parent = rec.parent;
	return 0;
}

static int list(struct listing *l, uint64_t ino, off_t off)
{
	uint64_t after = (uint64_t)off, parent;
	int err;

	if (off < 2) {
		err = parent_of(l->fs, ino, &parent);
		if (err)
			return err;
		if (add_dots(l, ino, parent, off))
			return 0;
		after = 2;
	}
	if (ino_is_hidden(ino))
		err = hidden_readdir(ino, after, add_entry, l);
	else
		err = view_readdir(l->fs->view, ino, after, add_entry, l);
	return err > 0 ? 0 : err;
}

static void reply_listing(fuse_req_t req, uint64_t ino, size_t size, off_t off,
			  bool plus)
{
	CLEANUP(free_p) char *buf = malloc(size);
	struct listing l = { .req = req,
			     .fs = fs_of(req),
			     .buf = buf,
			     .size = size,
			     .plus = plus };
	int err = buf ? list(&l, ino, off) : -ENOMEM;

	/* An error is told when nothing that came before it is lost. */
	if (err && !l.used)
		reply_result(req, err);
	else
		fuse_reply_buf(req, buf, l.used);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);
	int err = 0;

	if (ino_is_tensor(ino)) {
		tensor_opendir(req, ino, fi);
		return;
	}
	/* Hidden ones have no record. */
	fi->fh = !ino_is_hidden(ino);
	if (fi->fh)
		err = opened_dir_hold(fs->engine, ino);
	if (err)
		fuse_reply_err(req, -err);
	else
		fuse_reply_open(req, fi);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi)
{
	if (ino_is_tensor(ino))
		tensor_readdir(req, ino, size, off, fi, false);
	else
		reply_listing(req, ino, size, off, false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	if (ino_is_tensor(ino))
		tensor_readdir(req, ino, size, off, fi, true);
	else
		reply_listing(req, ino, size, off, true);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fuse_req_userdata(req);

	if (ino_is_tensor(ino)) {
		tensor_release(req, fi);
		return;
	}
	if (fi->fh)
		opened_dir_drop(fs->engine, ino);
	reply_result(req, 0);
}
