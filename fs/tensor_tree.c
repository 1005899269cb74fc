/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of tensors: what its numbers stand for, lookups and attributes.
 */
#include "fs/tensor_tree.h"

#include <errno.h>
#include <string.h>

#include "fs/errand.h"
#include "fs/tensor_handle.h"
#include "fs/tensor_name.h"

int tensor_tree_new(struct fs *fs, struct tensor_tree **out)
{
	struct tensor_tree *t = calloc(1, sizeof(*t));
	int err;

	(void)fs;
	if (!t)
		return -ENOMEM;
	err = tensor_nodes_new(&t->nodes);
	if (!err)
		err = tensor_handles_new(&t->handles);
	if (err)
		tensor_tree_free(t);
	else
		*out = t;
	return err;
}

void tensor_tree_free(struct tensor_tree *t)
{
	if (!t)
		return;
	tensor_handles_free(t->handles);
	tensor_nodes_free(t->nodes);
	free(t);
}

int tensor_error(int err)
{
	switch (err) {
	case -ENOMSG: /* opaque */
	case -EAGAIN: /* its bytes are not to be had yet */
		return -ENOENT;
	case -EUCLEAN:
	case -ERANGE:
		return -EIO;
	default:
		return err;
	}
}

uint64_t tensor_file_len(const struct tensor *t)
{
	return tensor_npy_header(t, NULL, 0) + tensor_len(t);
}

/* ---- attributes ------------------------------------------------------- */

static uint32_t readable(uint32_t mode)
{
	return mode & 0444;
}

/* Who may read may look in. */
static uint32_t mode_of(uint32_t mode)
{
	if (S_ISDIR(mode))
		return S_IFDIR | (mode & 0555);
	if (S_ISLNK(mode))
		return mode;
	return S_IFDIR | readable(mode) | readable(mode) >> 2;
}

static int stat_real(struct fs *fs, uint64_t ino, struct stat *out)
{
	struct inode_rec rec;
	int err = view_inode(fs->view, tensor_real_ino(ino), &rec);

	if (err)
		return err;
	stat_of_rec(&rec, out);
	out->st_ino = ino;
	out->st_mode = mode_of(rec.mode);
	out->st_blocks = 0;
	if (S_ISLNK(rec.mode))
		return 0;
	out->st_nlink = 2;
	out->st_size = 4096;
	return 0;
}

/* Rights and times are the file's as it is now, if it is still that one. */
static void take_rec(struct fs *fs, struct tensor_node *n)
{
	struct inode_rec rec;

	if (view_inode(fs->view, n->ino, &rec) || rec.version != n->version)
		return;
	n->mode = readable(rec.mode);
	n->uid = rec.uid;
	n->gid = rec.gid;
	n->mtime_ns = rec.mtime_ns;
}

static void stat_node(const struct tensor_node *n, uint64_t id,
		      struct stat *out)
{
	struct timespec mtime = timespec_of_ns(n->mtime_ns);

	*out = (struct stat){
		.st_ino = id,
		.st_mode = S_IFREG | n->mode,
		.st_nlink = 1,
		.st_uid = n->uid,
		.st_gid = n->gid,
		.st_size = (off_t)n->size,
		.st_blocks = (blkcnt_t)((n->size + 511) / 512),
		.st_blksize = FS_BLKSIZE,
		.st_atim = mtime,
		.st_mtim = mtime,
		.st_ctim = mtime,
	};
}

int tensor_stat(struct fs *fs, uint64_t ino, struct stat *out)
{
	struct tensor_node n;
	int err;

	if (!(ino & TENSOR_NODE_BIT))
		return stat_real(fs, ino, out);
	err = tensor_nodes_get(fs->tensors->nodes, ino, &n);
	if (err)
		return err;
	take_rec(fs, &n);
	stat_node(&n, ino, out);
	free(n.name);
	return 0;
}

void tensor_forget(struct fs *fs, uint64_t ino, uint64_t nlookup)
{
	if (ino & TENSOR_NODE_BIT)
		tensor_nodes_forget(fs->tensors->nodes, ino, nlookup);
}

/* ---- lookup ----------------------------------------------------------- */

bool tensor_shows_link(struct fs *fs, uint64_t ino)
{
	char target[META_PATH_MAX];

	return !view_symlink(fs->view, ino, target) && target[0] != '/';
}

static int find_in_dir(struct fs *fs, uint64_t dir, const char *name,
		       uint64_t *ino)
{
	struct dentry_rec d;
	bool shown = true;
	int err = view_lookup(fs->view, dir, name, &d);

	if (err)
		return err;
	if (S_ISREG(d.type))
		err = tensors_any(fs->engine, d.ino, &shown);
	else if (S_ISLNK(d.type))
		shown = tensor_shows_link(fs, d.ino);
	else if (!S_ISDIR(d.type))
		shown = false;
	if (err)
		return tensor_error(err);
	*ino = TENSOR_BIT | d.ino;
	return shown ? 0 : -ENOENT;
}

static int record_len(const struct tensor_table *table, uint64_t *len)
{
	CLEANUP(free_p) uint8_t *record = NULL;
	size_t n;
	int err = tensor_table_encode(table, &record, &n);

	if (!err)
		*len = n;
	return err;
}

static int find_in_file(fuse_req_t req, uint64_t ino, const char *name,
			uint64_t *id)
{
	struct fs *fs = fs_of(req);
	const struct tensor *found = NULL;
	struct tensor_node n = { .ino = ino };
	struct tensors *t;
	int err = tensors_open(fs->engine, ino, 0, &t);

	if (err)
		return tensor_error(err);
	n.version = tensors_version(t);
	if (!strcmp(name, TENSOR_RECORD_NAME)) {
		err = tensor_may_list(req, t);
		if (!err)
			err = record_len(tensors_table(t), &n.size);
	} else {
		found = tensor_of_file_name(tensors_table(t), name);
		/* Also that there is none is for who may know. */
		err = found ? tensor_may_read(req, t, found)
			    : tensor_may_list(req, t);
		if (!found && !err)
			err = -ENOENT;
	}
	if (found) {
		n.name = (char *)found->name; /* copied */
		n.size = tensor_file_len(found);
	}
	take_rec(fs, &n);
	if (!err)
		err = tensor_nodes_look_up(fs->tensors->nodes, &n, id);
	tensors_put(t);
	return err;
}

static int find(fuse_req_t req, uint64_t parent, const char *name,
		uint64_t *ino)
{
	struct fs *fs = fs_of(req);
	struct inode_rec rec;
	int err;

	if (strlen(name) > META_NAME_MAX)
		return -ENAMETOOLONG;
	if (parent & TENSOR_NODE_BIT)
		return -ENOTDIR;
	err = view_inode(fs->view, tensor_real_ino(parent), &rec);
	if (err)
		return err;
	if (S_ISDIR(rec.mode))
		return find_in_dir(fs, rec.ino, name, ino);
	return S_ISREG(rec.mode) ? find_in_file(req, rec.ino, name, ino)
				 : -ENOTDIR;
}

static bool look_up(const struct errand *w, bool patient)
{
	struct fuse_entry_param e = { .attr_timeout = TENSOR_KEEP_S,
				      .entry_timeout = TENSOR_KEEP_S };
	struct fs *fs = fs_of(w->req);
	int err;

	if (!patient)
		return false;
	err = find(w->req, w->ino, w->name, &e.ino);
	if (!err) {
		err = tensor_stat(fs, e.ino, &e.attr);
		if (err)
			tensor_forget(fs, e.ino, 1);
	}
	if (err)
		reply_result(w->req, err);
	else if (fuse_reply_entry(w->req, &e))
		tensor_forget(fs, e.ino, 1); /* interrupted: not known */
	return true;
}

void tensor_lookup(fuse_req_t req, uint64_t parent, const char *name)
{
	errand_do(&(struct errand){
		.run = look_up, .req = req, .ino = parent, .name = name });
}
