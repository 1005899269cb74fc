/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing the tree of tensors. A directory goes by the cookies of the real one
 * and leaves out what has no tensors; a file by their order in it, of the
 * table that it had when it was opened.
 *
 * Entries carry no attributes, also in readdirplus (node id 0): a node is made
 * by who looks it up.
 */
#include <errno.h>
#include <string.h>

#include "fs/errand.h"
#include "fs/tensor_handle.h"
#include "fs/tensor_name.h"

#define INO_UNKNOWN 0xffffffff /* as libfuse: ask by stat(2) */

struct listing {
	fuse_req_t req;
	struct fs *fs;
	char *buf;
	size_t size, used;
	bool plus;
	uint64_t end; /* the last cookie to be shown */
};

/* 1: there is no room left for it. */
static int add(struct listing *l, const char *name, uint64_t ino, uint32_t type,
	       off_t off)
{
	struct fuse_entry_param e = { .attr = { .st_ino = ino,
						.st_mode = type } };
	char *p = l->buf + l->used;
	size_t room = l->size - l->used, n;

	if (l->plus)
		n = fuse_add_direntry_plus(l->req, p, room, name, &e, off);
	else
		n = fuse_add_direntry(l->req, p, room, name, &e.attr, off);
	if (n > room)
		return 1;
	l->used += n;
	return 0;
}

static int add_entry(void *arg, const char *name, const struct dentry_rec *d)
{
	struct listing *l = arg;
	uint32_t type = S_IFDIR;
	bool shown = S_ISDIR(d->type);

	if (d->cookie > l->end)
		return 1;
	/* One that cannot be read is left out, like one that has none. */
	if (S_ISREG(d->type) && tensors_any(l->fs->engine, d->ino, &shown))
		shown = false;
	if (S_ISLNK(d->type)) {
		shown = tensor_shows_link(l->fs, d->ino);
		type = S_IFLNK;
	}
	return shown ? add(l, name, TENSOR_BIT | d->ino, type, (off_t)d->cookie)
		     : 0;
}

static int list_file(struct listing *l, const struct tensor_table *table,
		     uint64_t after)
{
	char name[META_NAME_MAX + 1];
	size_t n = tensor_table_count(table);

	for (size_t i = after - 2; i < n; i++) {
		const struct tensor *t = tensor_table_at(table, i);

		if (!tensor_is_shown(t))
			continue;
		tensor_file_name(t->name, name);
		if (add(l, name, INO_UNKNOWN, S_IFREG, (off_t)(i + 3)))
			break;
	}
	return 0;
}

static int list(struct listing *l, uint64_t ino, off_t off,
		const struct tensor_table *table)
{
	int err;

	if (off < 1 && add(l, ".", ino, S_IFDIR, 1))
		return 0;
	if (off < 2 && add(l, "..", INO_UNKNOWN, S_IFDIR, 2))
		return 0;
	if (off < 2)
		off = 2;
	if (table)
		return list_file(l, table, (uint64_t)off);
	err = view_readdir(l->fs->view, tensor_real_ino(ino), (uint64_t)off,
			   add_entry, l);
	return err > 0 ? 0 : err;
}

static bool open_dir(const struct errand *w, bool patient)
{
	struct fuse_file_info fi = w->fi;
	struct tensor_handle *h = NULL;
	struct fs *fs = fs_of(w->req);
	struct inode_rec rec;
	int err;

	if (!patient)
		return false;
	err = view_inode(fs->view, tensor_real_ino(w->ino), &rec);
	if (!err)
		err = tensor_handle_new(fs->tensors->handles, &h);
	if (!err && S_ISREG(rec.mode))
		err = tensors_open(fs->engine, rec.ino, 0, &h->tensors);
	if (!err && h->tensors)
		err = tensor_may_list(w->req, h->tensors);
	if (err) {
		tensor_handle_close(h);
		reply_result(w->req, tensor_error(err));
		return true;
	}
	listing_end(fs, &h->end, 0);
	fi.fh = (uintptr_t)h;
	if (fuse_reply_open(w->req, &fi))
		tensor_handle_close(h);
	return true;
}

void tensor_opendir(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	errand_do(&(struct errand){
		.run = open_dir, .req = req, .ino = ino, .fi = *fi });
}

static void reply_listing(const struct errand *w, bool plus)
{
	CLEANUP(free_p) char *buf = malloc(w->size);
	struct tensor_handle *h = tensor_handle_of(&w->fi);
	struct listing l = { .req = w->req,
			     .fs = fs_of(w->req),
			     .buf = buf,
			     .size = w->size,
			     .plus = plus,
			     .end = listing_end(fs_of(w->req), &h->end,
						w->off) };
	int err = -ENOMEM;

	if (buf)
		err = list(&l, w->ino, w->off,
			   h->tensors ? tensors_table(h->tensors) : NULL);
	if (err && !l.used)
		reply_result(w->req, err);
	else
		fuse_reply_buf(w->req, buf, l.used);
}

static bool read_dir(const struct errand *w, bool patient)
{
	if (patient)
		reply_listing(w, w->flags);
	return patient;
}

void tensor_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		    const struct fuse_file_info *fi, bool plus)
{
	errand_do(&(struct errand){ .run = read_dir,
				    .req = req,
				    .ino = ino,
				    .size = size,
				    .off = off,
				    .flags = plus,
				    .fi = *fi });
}
