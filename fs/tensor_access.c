/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May whoever asks read a shard, or know what is in it? As the kernel would decide for its path: mode
 * bits of the file and of each directory above it.
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

static int parent_of_file(void *arg, uint64_t parent, const char *name)
{
	(void)name;
	*(uint64_t *)arg = parent;
	return 1;
}

static int check_path(struct fs *fs, const struct asker *a, uint64_t ino)
{
	uint64_t at = META_ROOT_INO;
	struct inode_rec rec;
	int err = view_inode(fs->view, ino, &rec);

	if (err)
		return err;
	if (!allows(a, &rec, 4))
		return -EACCES;
	err = view_names(fs->view, ino, parent_of_file, &at);
	for (int i = 0; err >= 0 && i < MAX_DEPTH; i++) {
		err = view_inode(fs->view, at, &rec);
		if (!err && !allows(a, &rec, 1))
			return -EACCES;
		if (at == META_ROOT_INO)
			return err;
		at = rec.parent;
	}
	return err < 0 ? err : -EACCES;
}

int tensor_may_list(fuse_req_t req, const struct tensors *tensors)
{
	struct asker a;
	uint64_t ino;
	int err = 0;

	if (!fuse_req_ctx(req)->uid)
		return 0;
	find_asker(req, &a);
	for (size_t i = 0; !err && tensors_file_at(tensors, i, &ino); i++)
		err = check_path(fs_of(req), &a, ino);
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
	find_asker(req, &a);
	for (unsigned i = 0; i < t->n_pieces && !err; i++) {
		const char *file = t->pieces[i].file;

		if (!file || file == last)
			continue;
		last = file;
		if (tensors_file(tensors, file, &ino))
			err = check_path(fs_of(req), &a, ino);
	}
	return err;
}
