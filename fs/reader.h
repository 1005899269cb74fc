/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of libfuse's threads reads the next request: one at a time, the same
 * one as long as it answers quickly. Why: reader.c.
 *
 * Any thread.
 */
#ifndef CKPT_FS_READER_H
#define CKPT_FS_READER_H

#include "metadata/compiler.h"

struct fuse_session;
struct reader;

/* reader_free() it. -ENOMEM */
MUST_CHECK int reader_new(struct reader **out);
/* No thread of libfuse's is left. */
void reader_free(struct reader *r);
/*
 * Requests of this session, mounted on dev_fd, are read through the reader
 * that its struct fs names.
 *
 *   -EIO  libfuse does not want it
 */
MUST_CHECK int reader_use(struct fuse_session *se, int dev_fd);
/* The calling thread's request moves `len` bytes of data: if they are many,
 * another thread reads on at once. */
void reader_moves(struct reader *r, size_t len);

#endif
