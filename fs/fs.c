/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all operations need: times, the record as stat(2) shows it, and the
 * answer to a lookup.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "fs/fs.h"
#include "fs/hidden.h"

/*
 * The coarse clock, as backing files are stamped with it: the fine one would
 * make a write that follows a create look older than the create.
 */
int64_t fs_now_ns(void)
{
	struct timespec ts;

	/* Not the coarse clock: the kernel stamps backing files with the fine
	 * one, and times must not go back between the two. */
	clock_gettime(CLOCK_REALTIME, &ts);
	return ns_of_timespec(ts);
}

void reply_result(fuse_req_t req, int err)
{
	fuse_reply_err(req, -err);
}

void stat_of_rec(const struct inode_rec *rec, struct stat *out)
{
	*out = (struct stat){
		.st_ino = rec->ino,
		.st_mode = rec->mode,
		.st_nlink = rec->nlink,
		.st_uid = rec->uid,
		.st_gid = rec->gid,
		.st_rdev = rec->rdev,
		.st_size = (off_t)rec->size,
		.st_blocks = (blkcnt_t)rec->blocks,
		.st_blksize = FS_BLKSIZE,
		.st_atim = timespec_of_ns(rec->atime_ns),
		.st_mtim = timespec_of_ns(rec->mtime_ns),
		.st_ctim = timespec_of_ns(rec->ctime_ns),
	};
	if (S_ISDIR(rec->mode))
		out->st_size = 4096;
}

int entry_of_ino(struct fs *fs, uint64_t ino, struct fuse_entry_param *out)
{
	struct fuse_entry_param e = { .ino = ino,
				      .attr_timeout = KEEP_S,
				      .entry_timeout = KEEP_S };
	struct inode_rec rec;
	bool keeps;
	int err;

	if (ino_is_hidden(ino)) {
		err = hidden_stat(fs, ino, &e.attr);
		if (err)
			return err;
		if (ino_is_tensor(ino))
			e.attr_timeout = e.entry_timeout = TENSOR_KEEP_S;
		*out = e;
		return 0;
	}
	err = engine_stat(fs->engine, ino, &rec, &keeps);
	if (err)
		return err;
	stat_of_rec(&rec, &e.attr);
	e.attr_timeout = attr_keep_s(keeps);
	*out = e;
	return 0;
}

void reply_entry(fuse_req_t req, uint64_t ino, int err)
{
	struct fuse_entry_param e;

	if (!err)
		err = entry_of_ino(fs_of(req), ino, &e);
	if (err)
		reply_result(req, err);
	else
		fuse_reply_entry(req, &e);
}

int name_may_change(uint64_t parent, const char *name)
{
	if (strlen(name) > META_NAME_MAX)
		return -ENAMETOOLONG;
	if (ino_is_hidden(parent) || name_is_hidden(parent, name))
		return -EPERM;
	return 0;
}

/* S_ISGID without group execution is mandatory locking: it stays. */
uint32_t mode_without_priv(uint32_t mode)
{
	mode &= ~(uint32_t)S_ISUID;
	if (mode & S_IXGRP)
		mode &= ~(uint32_t)S_ISGID;
	return mode;
}

void attr_changed(struct fs *fs, uint64_t ino)
{
	fuse_lowlevel_notify_inval_inode(fs->session, ino, -1, 0);
}
