/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of libckpt's ioctls (providers/mount_ioctl.h): which size a
 * new file will have, which bytes of one are filled, which level it has
 * reached.
 */
#ifndef CKPT_FS_CAPTURE_H
#define CKPT_FS_CAPTURE_H

#include "fs/fs.h"

/* Which sizes were announced. Bounded; what is old is forgotten. Any thread. */
struct expected;
MUST_CHECK int expected_new(struct expected **out);
void expected_free(struct expected *x); /* NULL is allowed */
/* The size that uid announced for `name` in directory dir, once; 0: none. */
uint64_t expected_take(struct expected *x, uint64_t dir, const char *name,
		       uid_t uid);

/* Answers the ioctl if it is one of these. false: it is not. fh: of the file;
 * 0: it is a directory. */
bool capture_ioctl(fuse_req_t req, uint64_t ino, uint64_t fh, unsigned cmd,
		   const void *in, size_t in_len);

#endif
