/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May whoever asks read a shard, or know what is in it? As the kernel would
 * decide for its path: mode bits of the file and of each directory above it.
 */
#include <errno.h>
#include <string.h>

#include "fs/tensor_handle.h"

#define MAX_GROUPS 256
#define MAX_DEPTH 256

struct asker {
	uid_t uid;
	gid_t groups[MAX_GROUPS + 1];
	int n_groups;
};

static void find_asker(fuse_req_t req, struct asker *a)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	a->uid = ctx->uid;
	a->n_groups = fuse_req_getgroups(req, MAX_GROUPS, a->groups);
	if (a->n_groups < 0)
		a->n_groups = 0;
	if (a->n_groups > MAX_GROUPS)
		a->n_groups = MAX_GROUPS;
	a->groups[a->n_groups++] = ctx->gid;
}

static bool in_group(const struct asker *a, gid_t gid)
{
	for (int i = 0; i < a->n_groups; i++)
		if (a->groups[i] == gid)
			return true;
	return false;
}

/* want: one of 4 (read), 1 (search) */
static bool allows(const struct asker *a, const struct inode_rec *rec,
		   unsigned want)
{
	if (a->uid == rec->uid)
		return rec->mode >> 6 & want;
	if (in_group(a, rec->gid))
		return rec->mode >> 3 & want;
	return rec->mode & want;
}

struct search {
	struct fs *fs;
	const struct asker *asker;
};

/* 1: whoever asks gets to the name. */
static int try_name(void *arg, uint64_t parent, const char *name)
{
	const struct search *s = arg;
	struct inode_rec rec;
	uint64_t at = parent;

	(void)name;
	for (int i = 0; i < MAX_DEPTH; i++) {
		if (view_inode(s->fs->view, at, &rec) ||
		    !allows(s->asker, &rec, 1))
			return 0;
		if (at == META_ROOT_INO)
			return 1;
		at = rec.parent;
	}
	return 0;
}

/* By any of its names. */
static int check_file(struct fs *fs, const struct asker *a, uint64_t ino)
{
	struct search s = { fs, a };
	struct inode_rec rec;
	int r = view_inode(fs->view, ino, &rec);

	if (r)
		return r;
	if (!allows(a, &rec, 4))
		return -EACCES;
	r = view_names(fs->view, ino, try_name, &s);
	if (r < 0)
		return r;
	return r ? 0 : -EACCES;
}

int tensor_may_list(fuse_req_t req, const struct tensors *tensors)
{
	struct asker a;
	uint64_t ino;
	int err = 0;

	if (!fuse_req_ctx(req)->uid)
		return 0;
	for (size_t i = 0; !err && tensors_file_at(tensors, i, &ino); i++) {
		if (!i)
			find_asker(req, &a);
		err = check_file(fs_of(req), &a, ino);
	}
	return err;
}

int tensor_may_read(fuse_req_t req, const struct tensors *tensors,
		    const struct tensor *t)
{
	const char *last = NULL;
	struct asker a;
	uint64_t ino;
	int err = 0;

	if (!fuse_req_ctx(req)->uid)
		return 0;
	if (!t->n_pieces) /* no elements: any of them may describe it */
		return tensor_may_list(req, tensors);
	for (unsigned i = 0; i < t->n_pieces && !err; i++) {
		const char *file = t->pieces[i].file;

		if (!file || file == last)
			continue;
		if (!last)
			find_asker(req, &a);
		last = file;
		if (tensors_file(tensors, file, &ino))
			err = check_file(fs_of(req), &a, ino);
	}
	return err;
}
