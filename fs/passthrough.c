/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backing files registered with the kernel. The id lives as long as the
 * connection, or until it is closed; all opens of one inode at one time must
 * use the same one (the engine sees to that).
 *
 * The constants are the protocol's: kernel headers of Debian 12 do not know
 * them yet.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "fs/passthrough.h"
#include "metadata/log_message.h"

struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};

#define DEV_MAGIC 229
#define DEV_BACKING_OPEN _IOW(DEV_MAGIC, 1, struct backing_map)
#define DEV_BACKING_CLOSE _IOW(DEV_MAGIC, 2, uint32_t)

/* Backing files may lie on an overlayfs (containers do that to /var). */
#define BACKING_STACK_DEPTH 1

const char *passthrough_missing(void)
{
	return NULL;
}

static bool ask(struct fuse_conn_info *conn, unsigned cap)
{
	if (!(conn->capable & cap))
		return false;
	conn->want |= cap;
	return true;
}

bool passthrough_negotiate(struct fuse_conn_info *conn, bool wanted)
{
	/* Else every write costs a getxattr of security.capability. */
	ask(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	ask(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	if (!wanted || !ask(conn, FUSE_CAP_PASSTHROUGH))
		return false;
	conn->max_backing_stack_depth = BACKING_STACK_DEPTH;
	return true;
}

static int backing_open(void *arg, int fd, int32_t *id)
{
	const int *dev_fd = arg;
	struct backing_map map = { .fd = fd };
	int res = ioctl(*dev_fd, DEV_BACKING_OPEN, &map);

	if (res < 0)
		return -errno;
	if (res == 0)
		return -EIO;
	*id = res;
	return 0;
}

static void backing_close(void *arg, int32_t id)
{
	const int *dev_fd = arg;
	uint32_t which = (uint32_t)id;

	if (ioctl(*dev_fd, DEV_BACKING_CLOSE, &which) && errno != ENODEV)
		message_warning("cannot close backing id %u: %m", which);
}

int passthrough_try(int dev_fd)
{
	CLEANUP(close_p) int fd = memfd_create("ckptfs-probe", MFD_CLOEXEC);
	int32_t id = 0;
	int err;

	if (fd < 0)
		return -errno;
	err = backing_open(&dev_fd, fd, &id);
	if (err)
		return err;
	backing_close(&dev_fd, id);
	return 0;
}

void passthrough_hooks(const int *dev_fd, struct backing_hooks *out)
{
	*out = (struct backing_hooks){
		.open = backing_open,
		.close = backing_close,
		.arg = (void *)dev_fd,
	};
}

void passthrough_fill_open(struct fuse_file_info *fi, int32_t id,
			   bool direct_io)
{
	fi->backing_id = id;
	fi->parallel_direct_writes = direct_io;
}
