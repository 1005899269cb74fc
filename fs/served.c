/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes that do come here: all of them where files are served, and
 * those of O_SYNC handles elsewhere. The bytes are spliced between the
 * request and a descriptor of the backing file that the engine lends.
 */
#include <errno.h>

#include "fs/errand.h"
#include "fs/hidden.h"

static bool read_file(const struct errand *w, bool patient)
{
	struct fuse_bufvec buf = FUSE_BUFVEC_INIT(w->size);
	struct engine *e = fs_of(w->req)->engine;
	int fd;
	int err = file_borrow_read(e, w->ino, (uint64_t)w->off, w->size,
				   patient, &fd);

	if (err == -EINPROGRESS)
		return false;
	if (err) {
		reply_result(w->req, err);
		return true;
	}
	buf.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	buf.buf[0].fd = fd;
	buf.buf[0].pos = w->off;
	/* Never SPLICE_MOVE: it would take the pages from the backing file. */
	fuse_reply_data(w->req, &buf, 0);
	file_return_fd(e, w->ino, false, fd);
	return true;
}

void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	     struct fuse_file_info *fi)
{
	if (ino_is_hidden(ino))
		hidden_read(req, ino, size, off, fi);
	else
		errand_do(&(struct errand){ .run = read_file,
					    .req = req,
					    .ino = ino,
					    .size = size,
					    .off = off });
}

struct sync_write {
	fuse_req_t req;
	size_t n;
};

static void sync_write_done(void *arg, int err)
{
	struct sync_write *w = arg;

	if (err)
		reply_result(w->req, err);
	else
		fuse_reply_write(w->req, w->n);
	free(w);
}

void reply_written(fuse_req_t req, uint64_t ino, uint64_t fh, size_t n)
{
	struct engine *e = fs_of(req)->engine;
	struct sync_write *w;

	if (!n || !file_is_sync(fh)) {
		fuse_reply_write(req, n);
		return;
	}
	w = malloc(sizeof(*w));
	if (!w) {
		reply_result(req, -ENOMEM);
		return;
	}
	*w = (struct sync_write){ .req = req, .n = n };
	engine_fsync(e, ino, engine_fsync_level(e), sync_write_done, w);
}

void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *bufv,
		  off_t off, struct fuse_file_info *fi)
{
	size_t size = fuse_buf_size(bufv);
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(size);
	struct engine *e = fs_of(req)->engine;
	ssize_t n;
	int fd;
	int err = -EBADF;

	if (!ino_is_hidden(ino))
		err = file_borrow_write(e, ino, &fd);
	if (err) {
		reply_result(req, err);
		return;
	}
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	out.buf[0].fd = fd;
	out.buf[0].pos = off;
	n = fuse_buf_copy(&out, bufv, 0);
	file_return_fd(e, ino, true, fd);
	if (n < 0)
		reply_result(req, (int)n);
	else
		reply_written(req, ino, fi->fh, (size_t)n);
}
