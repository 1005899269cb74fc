/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of libfuse's threads reads the next request: one at a time, the same
 * one as long as it answers quickly. Why: receive.c.
 *
 * Any thread.
 */
#ifndef CKPT_FS_RECEIVE_H
#define CKPT_FS_RECEIVE_H

#include "metadata/compiler.h"

struct fuse_session;
struct receive;

/* receive_free() it. -ENOMEM */
MUST_CHECK int receive_new(struct receive **out);
/* No thread of libfuse's is left. */
void receive_free(struct receive *r);
/*
 * Requests of this session, mounted on dev_fd, are read through the one
 * that its struct fs names.
 *
 *   -EIO  libfuse does not want it
 */
MUST_CHECK int receive_use(struct fuse_session *se, int dev_fd);
/* The calling thread's request moves `len` bytes of data: if they are many,
 * another thread reads on at once. */
void receive_moves(struct receive *r, size_t len);

#endif
