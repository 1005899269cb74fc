/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_file_range(2): bytes are really copied from one backing file to the
 * other, in the kernel where both lie on the tmpfs. Never shared: a reflink
 * would hand out room that was set aside for the target, and a target that
 * shared the source's backing file would show NULs to those who have it open.
 */
#include <errno.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fs/fs.h"
#include "fs/hidden.h"

/* What one request copies at most, so that it does not hold a thread for
 * long: callers must go on after a short copy anyway. */
#define COPY_MAX (64u << 20)
#define BOUNCE_LEN (1u << 20)

static bool on_tmpfs(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) == 0 && st.f_type == TMPFS_MAGIC;
}

static ssize_t bounce_one(int in, off_t off_in, int out, off_t off_out,
			  void *buf, size_t len)
{
	ssize_t n = pread(in, buf, len < BOUNCE_LEN ? len : BOUNCE_LEN, off_in);
	ssize_t done = 0;

	if (n < 0)
		return -errno;
	while (done < n) {
		ssize_t w = pwrite(out, (char *)buf + done, (size_t)(n - done),
				   off_out + done);

		if (w < 0)
			return done ? done : -errno;
		done += w;
	}
	return done;
}

static ssize_t copy_bounce(int in, off_t off_in, int out, off_t off_out,
			   size_t len)
{
	CLEANUP(free_p) void *buf = malloc(BOUNCE_LEN);
	size_t done = 0;

	if (!buf)
		return -ENOMEM;
	while (done < len) {
		ssize_t n = bounce_one(in, off_in + (off_t)done, out,
				       off_out + (off_t)done, buf, len - done);

		if (n < 0 && !done)
			return n;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static ssize_t copy_kernel(int in, off_t off_in, int out, off_t off_out,
			   size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = copy_file_range(in, &off_in, out, &off_out,
					    len - done, 0);

		if (n < 0 && !done)
			return -errno;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static ssize_t copy_fds(int in, off_t off_in, int out, off_t off_out,
			size_t len)
{
	if (on_tmpfs(in) && on_tmpfs(out)) {
		ssize_t n = copy_kernel(in, off_in, out, off_out, len);

		if (n != -EXDEV && n != -EOPNOTSUPP && n != -EINVAL &&
		    n != -ENOSYS)
			return n;
	}
	return copy_bounce(in, off_in, out, off_out, len);
}

struct side {
	uint64_t ino, fh;
	off_t off;
};

static ssize_t copy(struct fs *fs, const struct side *from,
		    const struct side *to, size_t len)
{
	ssize_t n;
	int in, out;
	int err = file_borrow_fd(fs->engine, from->ino, from->fh, false,
				 (uint64_t)from->off, len, &in);

	if (err)
		return err;
	err = file_borrow_fd(fs->engine, to->ino, to->fh, true,
			     (uint64_t)to->off, len, &out);
	if (!err) {
		n = copy_fds(in, from->off, out, to->off, len);
		file_return_fd(fs->engine, to->ino, true, out);
	}
	file_return_fd(fs->engine, from->ino, false, in);
	return err ? err : n;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out,
			off_t off_out, struct fuse_file_info *fi_out,
			size_t len, int flags)
{
	struct side from = { .ino = ino_in, .fh = fi_in->fh, .off = off_in };
	struct side to = { .ino = ino_out, .fh = fi_out->fh, .off = off_out };
	struct fs *fs = fs_of(req);
	struct inode_rec rec;
	ssize_t n;
	int err;

	if (flags || ino_is_hidden(ino_in) || ino_is_hidden(ino_out)) {
		reply_result(req, -EINVAL);
		return;
	}
	/* Only as much as is there: room is leased for what is asked. */
	err = engine_stat(fs->engine, ino_in, &rec, NULL);
	if (!err && (uint64_t)off_in >= rec.size)
		len = 0;
	else if (!err && len > rec.size - (uint64_t)off_in)
		len = rec.size - (uint64_t)off_in;
	if (len > COPY_MAX)
		len = COPY_MAX;
	n = err ? err : 0;
	if (!err && len)
		n = copy(fs, &from, &to, len);
	if (n < 0)
		reply_result(req, (int)n);
	else
		reply_written(req, ino_out, fi_out->fh, (size_t)n);
}
