/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough: how the kernel is told of backing files, so that reads and
 * writes go straight to them. Needs libfuse >= 3.17, Linux >= 6.9 with
 * CONFIG_FUSE_PASSTHROUGH, and CAP_SYS_ADMIN. passthrough_none.c stands in
 * its place where the build has an older libfuse.
 */
#ifndef CKPT_FS_PASSTHROUGH_H
#define CKPT_FS_PASSTHROUGH_H

#include "fs/fs.h"

/* Why this build cannot, or NULL. */
const char *passthrough_missing(void);
/*
 * At INIT: asks for passthrough if it is wanted, and for what else only a
 * newer libfuse knows. Returns whether the kernel offers passthrough.
 */
bool passthrough_negotiate(struct fuse_conn_info *conn, bool wanted);
/*
 * After INIT: does it work on this connection?
 *
 *   -EPERM  no CAP_SYS_ADMIN
 */
MUST_CHECK int passthrough_try(int dev_fd);
/* dev_fd must live as long as the hooks are used. */
void passthrough_hooks(const int *dev_fd, struct backing_hooks *out);
/* In the answer to an open or create: what only a newer libfuse can say. id 0:
 * the file is served. */
void passthrough_fill_open(struct fuse_file_info *fi, int32_t id,
			   bool direct_io);

#endif
