/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of passthrough.c where libfuse is older than 3.17: all files are
 * served.
 */
#include <errno.h>

#include "fs/passthrough.h"

const char *passthrough_missing(void)
{
	return "libfuse is older than 3.17 in this build";
}

bool passthrough_negotiate(struct fuse_conn_info *conn, bool wanted)
{
	(void)conn;
	(void)wanted;
	return false;
}

int passthrough_try(int dev_fd)
{
	(void)dev_fd;
	return -EOPNOTSUPP;
}

void passthrough_hooks(const int *dev_fd, struct backing_hooks *out)
{
	(void)dev_fd;
	*out = (struct backing_hooks){ 0 };
}

void passthrough_fill_open(struct fuse_file_info *fi, int32_t id,
			   bool direct_io)
{
	(void)fi;
	(void)id;
	(void)direct_io;
}
