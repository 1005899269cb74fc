/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing a directory. Offsets are readdir cookies, which an entry keeps as
 * long as it lives, so a listing goes on where it was whatever was made or
 * removed meanwhile. Real cookies are above 2: offset 1 is behind `.`, 2
 * behind `..`.
 *
 * All that is kept between two calls is where the listing ends: at the newest
 * entry there was when it began. What is made later is not in it, or a program
 * that makes a copy of each entry it is told of would never come to the end.
 */
#include <errno.h>
#include <stdatomic.h>

#include "fs/hidden.h"

struct listing {
	fuse_req_t req;
	struct fs *fs;
	char *buf;
	size_t size, used;
	bool plus;
	uint64_t end; /* the last cookie to be shown */
};

struct open_dir {
	_Atomic uint64_t end;
};

static struct open_dir *open_dir_of(const struct fuse_file_info *fi)
{
	return (struct open_dir *)(uintptr_t)fi->fh;
}

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

	if (d->cookie > l->end)
		return 1;
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

uint64_t listing_end(const struct fs *fs, _Atomic uint64_t *end, off_t off)
{
	if (off == 0)
		atomic_store(end, meta_last_cookie(fs->meta));
	return atomic_load(end);
}

static void reply_listing(fuse_req_t req, uint64_t ino, size_t size, off_t off,
			  struct open_dir *dir, bool plus)
{
	struct fs *fs = fs_of(req);
	CLEANUP(free_p) char *buf = malloc(size);
	struct listing l = { .req = req,
			     .fs = fs,
			     .buf = buf,
			     .size = size,
			     .plus = plus,
			     .end = dir ? listing_end(fs, &dir->end, off)
					: UINT64_MAX };
	int err = buf ? list(&l, ino, off) : -ENOMEM;

	/* An error is told when nothing that came before it is lost. */
	if (err && !l.used)
		reply_result(req, err);
	else
		fuse_reply_buf(req, buf, l.used);
}

static int open_dir_new(struct fs *fs, uint64_t ino, struct open_dir **out)
{
	struct open_dir *dir = malloc(sizeof(*dir));
	int err = dir ? opened_dir_hold(fs->engine, ino) : -ENOMEM;

	if (err) {
		free(dir);
		return err;
	}
	listing_end(fs, &dir->end, 0);
	*out = dir;
	return 0;
}

/* NULL: of the hidden tree, which has no records. */
static void open_dir_close(struct fs *fs, uint64_t ino, struct open_dir *dir)
{
	if (dir)
		opened_dir_drop(fs->engine, ino);
	free(dir);
}

void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = fs_of(req);
	struct open_dir *dir = NULL;
	int err = 0;

	if (ino_is_tensor(ino)) {
		tensor_opendir(req, ino, fi);
		return;
	}
	if (!ino_is_hidden(ino))
		err = open_dir_new(fs, ino, &dir);
	if (err) {
		reply_result(req, err);
		return;
	}
	fi->fh = (uintptr_t)dir;
	/* -ENOENT: interrupted, the kernel will not release it. */
	if (fuse_reply_open(req, fi))
		open_dir_close(fs, ino, dir);
}

void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi)
{
	if (ino_is_tensor(ino))
		tensor_readdir(req, ino, size, off, fi, false);
	else
		reply_listing(req, ino, size, off, open_dir_of(fi), false);
}

void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	if (ino_is_tensor(ino))
		tensor_readdir(req, ino, size, off, fi, true);
	else
		reply_listing(req, ino, size, off, open_dir_of(fi), true);
}

void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (ino_is_tensor(ino)) {
		tensor_release(req, fi);
		return;
	}
	open_dir_close(fs_of(req), ino, open_dir_of(fi));
	reply_result(req, 0);
}
