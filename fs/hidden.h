/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree that can be looked up but is never listed: /ckpt/.ckptfs and what
 * lies in it. Its inode numbers are below HIDDEN_END or, in the tree of tensors
 * (tensor_tree.h), have TENSOR_BIT: no real one can be there (theirs carry an
 * epoch).
 */
#ifndef CKPT_FS_HIDDEN_H
#define CKPT_FS_HIDDEN_H

#include "fs/fs.h"
#include "fs/tensor_tree.h"

#define HIDDEN_NAME ".ckptfs"

enum hidden_ino {
	HIDDEN_DIR = 2,
	HIDDEN_METRICS = 3,
	HIDDEN_END = 256,
};

static inline bool ino_is_hidden(uint64_t ino)
{
	return (ino < HIDDEN_END && ino != META_ROOT_INO) || ino_is_tensor(ino);
}

/* Is this the hidden directory's name, in the root? */
bool name_is_hidden(uint64_t parent, const char *name);
/* parent is the root or hidden. -ENOENT */
MUST_CHECK int hidden_lookup(uint64_t parent, const char *name, uint64_t *ino);
/* -ENOENT: no such hidden inode */
MUST_CHECK int hidden_stat(struct fs *fs, uint64_t ino, struct stat *out);
/* Entries of the hidden directory with a number above `after`; the callback
 * as view_readdir()'s. */
MUST_CHECK int hidden_readdir(uint64_t ino, uint64_t after, dentry_fn *fn,
			      void *arg);

/* The requests for hidden files. The handle owns the text made at open. */
void hidden_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void hidden_read(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		 const struct fuse_file_info *fi);
void hidden_release(fuse_req_t req, uint64_t ino,
		    const struct fuse_file_info *fi);

/* Prometheus text of the mount's state, malloc'ed. fs/metrics.c */
MUST_CHECK int metrics_text(struct fs *fs, char **out, size_t *len);

#endif
