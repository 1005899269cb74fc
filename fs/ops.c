/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of operations, and what is agreed with the kernel at INIT.
 *
 * getlk, setlk and flock are left out on purpose: the kernel then keeps
 * fcntl, OFD and flock locks itself. So is bmap, poll, tmpfile and access
 * (default_permissions: the kernel checks).
 */
#include <stdio.h>
#include <stdlib.h>

#include "fs/fs.h"
#include "fs/passthrough.h"

/*
 * Pages one request may carry. A write of 1 MiB from an unaligned buffer
 * touches 257, one more than the default limit (sysctl
 * fs.fuse.max_pages_limit); where the limit was raised, use it.
 */
static unsigned max_pages(void)
{
	unsigned long limit = 256;
	FILE *f = fopen("/proc/sys/fs/fuse/max_pages_limit", "re");
	char line[32];

	if (!f)
		return 256;
	if (fgets(line, sizeof(line), f))
		limit = strtoul(line, NULL, 10);
	fclose(f);
	return limit > 256 ? 257 : 256;
}

static void want(struct fuse_conn_info *conn, unsigned cap)
{
	if (conn->capable & cap)
		conn->want |= cap;
}

/*
 * Nothing is cached by content (files pass through or are opened with
 * direct_io), so AUTO_INVAL_DATA has nothing to do. Splicing requests in
 * pays where they carry data, which is where files are served.
 */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;

	want(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	want(conn, FUSE_CAP_PARALLEL_DIROPS);
	want(conn, FUSE_CAP_CACHE_SYMLINKS);
	want(conn, FUSE_CAP_READDIRPLUS);
	want(conn, FUSE_CAP_READDIRPLUS_AUTO);
	want(conn, FUSE_CAP_IOCTL_DIR);
	want(conn, FUSE_CAP_ASYNC_READ);
	want(conn, FUSE_CAP_ASYNC_DIO);
	want(conn, FUSE_CAP_SPLICE_WRITE);
	conn->want &=
		~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA |
			    FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_POSIX_LOCKS |
			    FUSE_CAP_FLOCK_LOCKS | FUSE_CAP_SPLICE_MOVE);
	fs->kernel_passes = passthrough_negotiate(conn, fs->want_passthrough);
	if (fs->kernel_passes)
		conn->want &= ~(unsigned)FUSE_CAP_SPLICE_READ;
	else
		want(conn, FUSE_CAP_SPLICE_READ);
	conn->max_write = max_pages() * (unsigned)getpagesize();
	conn->max_background = 64;
	conn->time_gran = 1;
	fs->initialised = true;
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.read = op_read,
	.write_buf = op_write_buf,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.create = op_create,
	.ioctl = op_ioctl,
	.fallocate = op_fallocate,
	.copy_file_range = op_copy_file_range,
	.lseek = op_lseek,
};
