/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open directory or file of the tensor tree: it holds its table, and what
 * it reads from, whatever becomes of the file meanwhile.
 */
#ifndef CKPT_FS_TENSOR_HANDLE_H
#define CKPT_FS_TENSOR_HANDLE_H

#include <sys/queue.h>

#include "fs/tensor_tree.h"

struct tensor_handle {
	LIST_ENTRY(tensor_handle) next; /* guarded by the list's lock */
	struct tensor_handles *list;
	/* immutable once it is open */
	struct tensors *tensors;
	const struct tensor *tensor; /* NULL: a directory, or the record */
	struct source_set *sources;
	uint8_t *head; /* .npy header; or all of the record */
	size_t head_len;
	uint64_t size;
	/* A whole image that is dear to make in parts, or NULL. */
	struct mutex lock;
	uint8_t *image; /* guarded by lock until it is there, then immutable */
	size_t image_len;     /* of the budget; 0: none */
	_Atomic uint64_t end; /* of a listing (listing_end()) */
};

MUST_CHECK int tensor_handle_new(struct tensor_handles *hs,
				 struct tensor_handle **out);
/* NULL is fine. */
void tensor_handle_close(struct tensor_handle *h);

static inline struct tensor_handle *tensor_handle_of(
	const struct fuse_file_info *fi)
{
	return (struct tensor_handle *)(uintptr_t)fi->fh;
}

/*
 * May whoever asks read all files that tensor t of ino lies in? The kernel has
 * seen to that of ino itself.
 *
 *   -EACCES
 */
MUST_CHECK int tensor_may_read(fuse_req_t req, const struct tensors *tensors,
			       const struct tensor *t);
/*
 * The same of all files of a checkpoint: an index of one's own must not tell
 * what is in the files of others.
 *
 *   -EACCES
 */
MUST_CHECK int tensor_may_list(fuse_req_t req, const struct tensors *tensors);

#endif
