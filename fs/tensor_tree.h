/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /ckpt/.ckptfs/tensors: the directories of the mount once more, in them each
 * file that has tensors as a directory of NAME.npy, read-only. Files without
 * any do not appear. Each entry has owner, read rights and times of the
 * directory or file that it stands for, so the kernel's checks are theirs;
 * what lies in other files (a sharded checkpoint) is checked at each lookup and
 * open, those of all its files before it is listed.
 *
 * Numbers: directories, files and symlinks are their inode number with
 * TENSOR_BIT: nothing is kept for them. A tensor is a *node*, numbered anew
 * when it is looked up and kept until the kernel forgets it; it stands for one
 * tensor of one version, so its bytes never change. Real inode numbers have
 * neither bit (their epoch is below 2^20).
 *
 * Threads: any.
 */
#ifndef CKPT_FS_TENSOR_TREE_H
#define CKPT_FS_TENSOR_TREE_H

#include "engine/tensors.h"
#include "fs/fs.h"

#define TENSOR_BIT (UINT64_C(1) << 62)
#define TENSOR_NODE_BIT (UINT64_C(1) << 61)
#define TENSOR_ROOT (TENSOR_BIT | META_ROOT_INO)
/* Seconds the kernel may keep what it knows of them. */
#define TENSOR_KEEP_S 1.0
/* Beside the tensors, never listed: their table as a record. */
#define TENSOR_RECORD_NAME ".record"

static inline bool ino_is_tensor(uint64_t ino)
{
	return ino & TENSOR_BIT;
}

struct tensor_tree;
/* Before the first request; the engine runs. */
MUST_CHECK int tensor_tree_new(struct fs *fs, struct tensor_tree **out);
/* After the last one: closes what the kernel left open. NULL is fine. */
void tensor_tree_free(struct tensor_tree *t);

/* ---- requests; ino or parent is in the tree --------------------------- */

/* They reply. */
void tensor_lookup(fuse_req_t req, uint64_t parent, const char *name);
void tensor_opendir(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void tensor_readdir(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		    const struct fuse_file_info *fi, bool plus);
void tensor_open_file(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi);
void tensor_read(fuse_req_t req, size_t size, off_t off,
		 const struct fuse_file_info *fi);
void tensor_release(fuse_req_t req, const struct fuse_file_info *fi);
/* -ENOENT: what it stands for is gone. */
MUST_CHECK int tensor_stat(struct fs *fs, uint64_t ino, struct stat *out);
void tensor_forget(struct fs *fs, uint64_t ino, uint64_t nlookup);

/* ---- between fs/tensor_*.c -------------------------------------------- */

/* What a node stands for. */
struct tensor_node {
	uint64_t ino, version; /* of the file */
	char *name;            /* of the tensor; NULL: the record */
	uint64_t size;
	uint32_t mode, uid, gid; /* as of the lookup, like mtime */
	int64_t mtime_ns;
};

/* fs/tensor_node.c: the nodes the kernel knows. */
struct tensor_nodes;
MUST_CHECK int tensor_nodes_new(struct tensor_nodes **out);
void tensor_nodes_free(struct tensor_nodes *nodes);
/* The number of such a node, looked up once more; name is copied. */
MUST_CHECK int tensor_nodes_look_up(struct tensor_nodes *nodes,
				    const struct tensor_node *node,
				    uint64_t *id);
/* A copy; free() its name. -ESTALE: unknown */
MUST_CHECK int tensor_nodes_get(struct tensor_nodes *nodes, uint64_t id,
				struct tensor_node *out);
void tensor_nodes_forget(struct tensor_nodes *nodes, uint64_t id,
			 uint64_t nlookup);

/* fs/tensor_file.c: open files and directories. */
struct tensor_handles;
MUST_CHECK int tensor_handles_new(struct tensor_handles **out);
void tensor_handles_free(struct tensor_handles *hs);

struct tensor_tree {
	struct tensor_nodes *nodes;
	struct tensor_handles *handles;
};

/* Of what a number without node stands for; the real one. */
static inline uint64_t tensor_real_ino(uint64_t ino)
{
	return ino & ~TENSOR_BIT;
}

/* Shown as a file of the tree: header and image. */
uint64_t tensor_file_len(const struct tensor *t);
/* What the engine says, as an errno for a user. */
int tensor_error(int err);
/* Is a symlink shown? Its target must lead somewhere in the tree. */
bool tensor_shows_link(struct fs *fs, uint64_t ino);

#endif
