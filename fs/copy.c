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

#include "fs/errand.h"
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

static ssize_t copy(struct fs *fs, const struct errand *w, size_t len,
		    bool patient)
{
	ssize_t n;
	int in, out;
	int err = file_borrow_read(fs->engine, w->ino, (uint64_t)w->off, len,
				   patient, &in);

	if (err)
		return err;
	err = file_borrow_write(fs->engine, w->ino_out, &out);
	if (!err) {
		n = copy_fds(in, w->off, out, w->off_out, len);
		file_return_fd(fs->engine, w->ino_out, true, out);
	}
	file_return_fd(fs->engine, w->ino, false, in);
	return err ? err : n;
}

static bool copy_range(const struct errand *w, bool patient)
{
	struct fs *fs = fs_of(w->req);
	size_t len = w->size;
	struct inode_rec rec;
	ssize_t n;
	/* Only as much as is there: room is leased for what is asked. */
	int err = engine_stat(fs->engine, w->ino, &rec, NULL);

	if (!err && (uint64_t)w->off >= rec.size)
		len = 0;
	else if (!err && len > rec.size - (uint64_t)w->off)
		len = rec.size - (uint64_t)w->off;
	if (len > COPY_MAX)
		len = COPY_MAX;
	n = err ? err : 0;
	if (!err && len)
		n = copy(fs, w, len, patient);
	if (n == -EINPROGRESS)
		return false;
	if (n < 0)
		reply_result(w->req, (int)n);
	else
		reply_written(w->req, w->ino_out, w->fi_out.fh, (size_t)n);
	return true;
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out,
			off_t off_out, struct fuse_file_info *fi_out,
			size_t len, int flags)
{
	if (flags || ino_is_hidden(ino_in) || ino_is_hidden(ino_out)) {
		reply_result(req, -EINVAL);
		return;
	}
	(void)fi_in;
	errand_do(&(struct errand){ .run = copy_range,
				    .req = req,
				    .ino = ino_in,
				    .off = off_in,
				    .ino_out = ino_out,
				    .off_out = off_out,
				    .size = len,
				    .fi_out = *fi_out });
}
